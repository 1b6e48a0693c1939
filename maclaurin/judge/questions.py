"""Questions that models answer side by side, unless a file has others: one each line."""

QUESTIONS = (
    "What is the capital of France?",
    "How many days are there in a week?",
    "What is 7 plus 5?",
    "Name three primary colours.",
    "What do bees make?",
    "Who wrote Romeo and Juliet?",
    "What is the boiling point of water in degrees Celsius?",
    "Translate 'good morning' into Spanish.",
    "What is the opposite of hot?",
    "Which planet is known as the red planet?",
    "Write one sentence about the sea.",
    "What is the plural of mouse?",
    "List the four seasons of the year.",
    "What does a compiler do?",
    "Give a synonym of happy.",
    "Why do leaves fall in autumn?",
    "What is the largest ocean on Earth?",
    "Explain in one sentence what a file system is.",
    "How do you say thank you politely in an email?",
    "What comes next: 2, 4, 6, 8?",
)
