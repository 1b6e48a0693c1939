#!/bin/sh
# Compiles the kernels for aarch64 and runs them over hostile shapes under qemu, compared with plain loops in float64.
# From Debian: apt install cmake g++-aarch64-linux-gnu qemu-user. Nothing is installed. The tests in Python: arm_tests.sh.
set -eu
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S csrc -B "$build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ >/dev/null
for driver in maclaurin_driver maclaurin_first_order maclaurin_delta maclaurin_piecewise maclaurin_turn maclaurin_mean_filter maclaurin_between; do
    cmake --build "$build" --target "$driver" --parallel 2 >/dev/null
    echo "== $driver"
    qemu-aarch64 -L /usr/aarch64-linux-gnu "$build/$driver"
done
