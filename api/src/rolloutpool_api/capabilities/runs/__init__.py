"""Runs in the API: `routes` announces versions, and pauses and resumes."""
