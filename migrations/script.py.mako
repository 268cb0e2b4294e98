"""${message}.

Rules, for a replica of the previous release runs on while this one comes up, and may be restarted:

- Expand now, contract a release later: add tables, nullable columns, columns with a server default, indexes.
  What the code stopped using in *this* release may be dropped in the next one only. Never rename.
- Write the operations out. Import nothing from `rota.storage.schema`: it describes today, this file describes a step.
- It runs on Postgres (everything in the schema `rota`) and on SQLite (no schema, `op.batch_alter_table`).
- It runs in one transaction with a lock timeout of a few seconds. Rewriting a large table does not belong here.
- Nothing takes a migration back: the release before works on its schema. A test compares the schema with the model on both engines.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
