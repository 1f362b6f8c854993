"""Sampled text to a message: what the policy said, thought and called.

A parse decides what agents see and which tools run. What is trained are the sampled ids, whatever a parser says.

| module | what it is |
| --- | --- |
| `turn_parser` | the one interface: which parser a tokenizer gets, thoughts, and from ids to a message |
| `found` | what a parser found in a text; calls that are JSON |
| `syntaxes` | the ways in which model families write calls |
| `response_template` | a tokenizer's or a user's own description of its text, in the form of transformers |
| `renderers_package` | parsers of the package `renderers`, if it is installed |
"""
