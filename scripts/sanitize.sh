#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer, then with ThreadSanitizer, and runs them over
# hostile shapes with every instruction set of this CPU. Nothing is installed.
set -eu
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
for sanitizer in address,undefined thread; do
    echo "== -fsanitize=$sanitizer"
    folder="$build/${sanitizer%%,*}"
    cmake -S csrc -B "$folder" -DCMAKE_BUILD_TYPE=Debug -DMACLAURIN_SANITIZE="$sanitizer" >/dev/null
    for driver in maclaurin_driver maclaurin_first_order maclaurin_delta maclaurin_piecewise maclaurin_turn maclaurin_mean_filter maclaurin_between; do
        cmake --build "$folder" --target "$driver" --parallel 2 >/dev/null
        "$folder/$driver"
    done
done
