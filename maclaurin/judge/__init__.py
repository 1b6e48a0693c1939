"""A softmax model and its conversions side by side, judged as users would: text, answers, recall, decoding, a task."""
