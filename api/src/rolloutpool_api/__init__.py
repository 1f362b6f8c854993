"""The API process: accepts batches of rollouts and answers what became of them. It knows nothing about tokens.

- `app` puts everything together; `routes` has one module per conversation; `services` is what the routes share.
- `body`, `validation`, `checks`, `restrictions` and `submission` turn a request into a batch for the store.
- `results`, `events` and `synchronous` give results back: by page, as a stream of events, or to a waiting caller.
- `access` decides who may call, by the keys of `key_ring`; `audit` logs what admins do.
- `errors` and `fault_list` are what a caller gets who may not, or who made a mistake.
- `reconciler` works in the background; `metrics` counts; `settings` configures.
"""
