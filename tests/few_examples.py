"""`pytest -p tests.few_examples`: laws over random inputs with a tenth of their examples, where a processor is emulated."""

from hypothesis import settings


def pytest_collection_modifyitems(items):
    for item in items:
        test = getattr(item, "obj", None)
        if getattr(test, "is_hypothesis_test", False):
            usual = test._hypothesis_internal_use_settings
            if usual.max_examples > 10:
                test._hypothesis_internal_use_settings = settings(usual, max_examples=usual.max_examples // 10)
