"""Does a template hold what the delta renderer assumes? `conformance` tries it, `report` explains it to a person."""
