"""The first two parts of AutoAttack (Croce and Hein 2020), APGD on the cross-entropy and targeted APGD: for development, and
for studies over seeds.

The robust accuracy under them is at least AutoAttack's, most often nearly the same in a fraction of the time. It is not
AutoAttack and never bears that name: no track may publish it as a number of a row.
"""

from __future__ import annotations

from benchmark.attacks import autoattack

components = ("apgd-ce", "apgd-t")
engines = autoattack.engines
per_image = True
attack = autoattack.attack
