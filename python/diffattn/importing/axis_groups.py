"""Which axes of a tensor that is reshaped hold the same elements before and after."""

from __future__ import annotations

Range = tuple[int, int]


def axis_groups(before: list[int], after: list[int]) -> list[tuple[Range, Range]] | None:
    """Ranges of axes of the same elements, before and after, as small as they can be. Symbolic sizes are given as numbers that stand
    for them, which differ where the sizes do. None: there is no such pair of ranges, or a side has no axes."""
    groups, i, j = [], 0, 0
    while i < len(before) and j < len(after):
        begin, into = i, j
        first, second = before[i], after[j]
        i, j = i + 1, j + 1
        while first != second:
            if first < second and i < len(before):
                first, i = first * before[i], i + 1
            elif second < first and j < len(after):
                second, j = second * after[j], j + 1
            else:
                return None
        groups.append(((begin, i), (into, j)))
    if not groups:
        return None
    # Axes of one element are left at the end.
    (begin, _), (into, _) = groups[-1]
    groups[-1] = (begin, len(before)), (into, len(after))
    return groups
