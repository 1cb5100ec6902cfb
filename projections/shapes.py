"""Tables as the catalogue describes them: what makes one like another, and what stands on it."""

from __future__ import annotations

from typing import Any, NamedTuple

from psycopg import sql

from projections.session import Session


class Shape(NamedTuple):
    """All of a table but its rows, its name's schema and who may read it."""

    columns: tuple[Any, ...]
    """Name, type, collation, whether it may be null, generated, identity, default; in order."""
    constraints: tuple[Any, ...]
    indexes: tuple[Any, ...]
    options: tuple[str, ...]
    """Storage parameters: fillfactor, when it is vacuumed."""
    kind: tuple[Any, ...]
    """Whether it is logged, has rules for rows, and what replicas are told."""


_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attcollation, a.attnotnull,
    a.attgenerated::text, a.attidentity::text, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# Postgres 18 names what is not null too; the columns tell that.
_CONSTRAINTS = """
SELECT conname, contype::text, pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = %s AND contype <> 'n' ORDER BY conname
"""
_INDEXES = """
SELECT c.relname, i.indisunique, substr(told, strpos(told, ' USING ') + 7),
    EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.conrelid = i.indrelid)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid, pg_get_indexdef(i.indexrelid) told
WHERE i.indrelid = %s AND i.indisvalid ORDER BY c.relname
"""
_KIND = """
SELECT coalesce(reloptions, '{}'), relpersistence::text, relrowsecurity, relreplident::text
FROM pg_class WHERE oid = %s
"""

# What belongs to a table goes with it: its type, its indexes and constraints, its defaults and
# statistics. All else that names it (a view, a foreign key, a trigger, a publication) would be left
# with the old one.
_DEPENDANTS = """
SELECT DISTINCT pg_describe_object(d.classid, d.objid, 0)
FROM pg_class t JOIN pg_depend d ON (d.refclassid, d.refobjid)
    IN (('pg_class'::regclass, t.oid), ('pg_type'::regclass, t.reltype))
LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
LEFT JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
WHERE t.oid = %s
    AND d.classid NOT IN
        ('pg_type'::regclass, 'pg_attrdef'::regclass, 'pg_statistic_ext'::regclass)
    AND coalesce(c.relkind NOT IN ('i', 't') AND d.deptype <> 'i', true)
    AND coalesce(k.conrelid <> t.oid OR k.contype = 'f', true)
ORDER BY 1
"""

_GRANTS = """
SELECT g.privilege_type, coalesce(r.rolname, ''), g.is_grantable
FROM pg_class c, aclexplode(c.relacl) g LEFT JOIN pg_roles r ON r.oid = g.grantee
WHERE c.oid = %s AND g.grantee <> c.relowner
"""
_OWNER = """
SELECT r.rolname, c.relowner <> current_user::regrole::oid
FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = %s
"""


def oid(session: Session, schema: str, table: str) -> int:
    """The table's number. Raise psycopg.Error where it does not exist."""
    name = sql.Identifier(schema, table).as_string(session)
    ((number,),) = session.execute("SELECT %s::regclass::oid", (name,)).fetchall()
    return int(number)


def shape(session: Session, schema: str, table: str) -> Shape:
    """Equal for two tables that code cannot tell apart."""
    number = (oid(session, schema, table),)
    columns, constraints, indexes = (
        tuple(session.execute(query, number).fetchall())
        for query in (_COLUMNS, _CONSTRAINTS, _INDEXES)
    )
    ((options, *kind),) = session.execute(_KIND, number).fetchall()
    return Shape(columns, constraints, indexes, tuple(sorted(options)), tuple(kind))


def dependants(session: Session, schema: str, table: str) -> list[str]:
    """What names this table and does not belong to it, as Postgres describes it."""
    found = session.execute(_DEPENDANTS, (oid(session, schema, table),))
    return [described for (described,) in found]


def copy(session: Session, table: str, *, of: str, to: str) -> None:
    """Make an empty table in schema `to` like the one of that name in schema `of`."""
    given = shape(session, of, table)
    new = sql.Identifier(to, table)
    # Indexes get the names that they have there: a later migration may drop one by its name.
    session.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES)").format(
            new, sql.Identifier(of, table)
        )
    )
    if given.options:
        pairs = [option.split("=", 1) for option in given.options]
        options = [sql.SQL("{} = {}").format(sql.Identifier(k), sql.Literal(v)) for k, v in pairs]
        session.execute(sql.SQL("ALTER TABLE {} SET ({})").format(new, sql.SQL(", ").join(options)))
    for name, kind, definition in given.constraints:
        if kind in "pux":
            session.execute(
                sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(
                    new, sql.Identifier(name), _as_told(definition)
                )
            )
    for name, unique, definition, of_constraint in given.indexes:
        if not of_constraint:
            session.execute(
                sql.SQL("CREATE {} INDEX {} ON {} USING {}").format(
                    sql.SQL("UNIQUE" if unique else ""),
                    sql.Identifier(name),
                    new,
                    _as_told(definition),
                )
            )


def share(session: Session, table: str, *, of: str, to: str) -> None:
    """Give the table in schema `to` the owner of the one in `of`, and let the same roles use it."""
    number, new = (oid(session, of, table),), sql.Identifier(to, table)
    for privilege, role, grantable in session.execute(_GRANTS, number).fetchall():
        session.execute(
            sql.SQL("GRANT {} ON {} TO {} {}").format(
                _as_told(privilege),
                new,
                sql.Identifier(role) if role else sql.SQL("PUBLIC"),
                sql.SQL("WITH GRANT OPTION" if grantable else ""),
            )
        )
    ((owner, another),) = session.execute(_OWNER, number).fetchall()
    if another:
        session.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(new, sql.Identifier(owner)))


def _as_told(definition: str) -> sql.Composable:
    """SQL as the catalogue wrote it."""
    return sql.SQL(definition)
