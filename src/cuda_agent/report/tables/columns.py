"""Tables of a terminal: without borders, numbers at the right."""

from collections.abc import Collection

from rich.table import Table


def plain_table(
    *headers: str, left: Collection[str] = (), wrap: Collection[str] = (), title: str | None = None
) -> Table:
    """Returns a table with these columns. Columns in `left` hold words, the others numbers. Cells of columns in `wrap`
    may take several lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for header in headers:
        wraps = header in wrap
        table.add_column(
            header,
            justify="left" if header in left else "right",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
        )
    return table
