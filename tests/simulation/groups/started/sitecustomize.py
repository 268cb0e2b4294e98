"""Plants a defect in a process of the product from its start on: see `tests/simulation/groups/planted_plugin.py`."""

import os

if name := os.environ.get("ROTA_PLANTED_DEFECT"):
    from tests.simulation.groups.named import ROWS

    planted = ROWS[name].planted()
    planted.__enter__()
