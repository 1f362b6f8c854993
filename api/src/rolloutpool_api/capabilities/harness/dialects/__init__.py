"""The dialects in which programs call a model: each reads requests into chat form and writes replies.

- `base`: what a dialect does, and what all of them share.
- `chat`: OpenAI's chat completions. `responses`: OpenAI's Responses. `messages`: Anthropic's Messages.
"""
