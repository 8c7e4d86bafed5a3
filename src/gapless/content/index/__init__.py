"""Which subscriptions want which rows? A whole batch against all of them, with array operations.

- `features`: what is read of each row: int64 arrays, one per column and way of looking at it
- `plan`: how one conjunction is found (its access) and what is then checked (bounds and atoms)
- `postings`: sorted arrays in which the conjunctions are found by key and by range
- `table`: the bounds of all conjunctions as arrays, and the check of candidates
- `index`: the whole, with `add`, `remove` and `match`
"""
