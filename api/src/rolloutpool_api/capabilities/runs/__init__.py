"""Runs in the API: `routes` announces versions, and pauses and resumes; `checks` looks at the limits of a batch."""
