"""The table of a batch, for people: `choice` filters, sorts and pages rows, `routes` answers with columns of them."""
