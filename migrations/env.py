"""Runs the migrations of one schema family on one connection.

Which family, on which connection and how the version is kept is decided by the caller, who hands
it over in `config.attributes` (see `unified_prof.migrate.runner`):

connection: a SQLAlchemy connection that is not in a transaction
configure: further arguments of `context.configure`, such as where the version is kept
"""

from alembic import context
from alembic.util import CommandError

attributes = context.config.attributes
if "connection" not in attributes:
    raise CommandError("run migrations by `uprof db upgrade`; Alembic alone lacks the file")

context.configure(
    connection=attributes["connection"],
    render_as_batch=True,
    transaction_per_migration=True,
    **attributes["configure"],
)
with context.begin_transaction():
    context.run_migrations()
