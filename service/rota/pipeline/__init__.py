"""The past as tables: reads the journal with Spark, folds it into facts, and makes reports and advice of them.

The journal's lines go through four rooms: `source` (Spark reads the store), `bronze` (a copy of the lines), `fold` and
`facts` (what happened, one table a question) and the readers of those: `report`, `advisor`, `timeouts`, `audit`.
"""
