"""The engine over HTTP: transformers' own server with OpenAI's API, sessions, metrics and a page to try models on."""
