#!/bin/sh
# Runs the tests of the native kernels on aarch64 under qemu: a wheel that is cross-compiled here, in a Python from Debian and
# PyTorch from PyPI. Laws over random inputs have a tenth of their examples, since all of it is emulated, also their oracle.
# From Debian: apt install cmake g++-aarch64-linux-gnu qemu-user. Nothing is installed; 1 GB goes into build/aarch64.
#   scripts/arm_tests.sh [what pytest takes]        by default tests/ops/test_native*.py
set -eu
cd "$(dirname "$0")/.."
root="$PWD/build/aarch64"
python=${PYTHON:-python3}
mkdir -p "$root/apt/lists/partial" "$root/cache/archives/partial"

# apt with folders of its own, to which nothing is installed yet, downloads a package and all that it depends on
debian() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Dir::Cache="$root/cache" \
        -o Dir::State="$root/apt" -o Dir::State::status=/dev/null "$@"
}
if [ ! -x "$root/debian/usr/bin/python3.11" ]; then
    debian update
    debian install --download-only --yes --no-install-recommends python3.11 libstdc++6
    for package in "$root"/cache/archives/*.deb; do dpkg -x "$package" "$root/debian"; done
fi

packages() {
    "$python" -m pip install --quiet --target "$root/site" --only-binary=:all: --python-version 3.11 \
        --platform manylinux_2_28_aarch64 --platform manylinux2014_aarch64 "$@"
}
# PyTorch's own requirements are named here, because pip would judge those of CUDA by this machine; later aarch64 wheels bring CUDA
if [ ! -d "$root/site/torch" ]; then
    packages filelock fsspec hypothesis jinja2 networkx numpy pytest rich safetensors sympy typer typing-extensions
    packages --no-deps torch==2.10.0
fi

rm -f "$root"/maclaurin-*.whl
CMAKE_ARGS="-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++" \
    _PYTHON_HOST_PLATFORM=linux-aarch64 "$python" -m pip wheel --quiet --no-deps --wheel-dir "$root" .
rm -rf "$root/wheel" "$root/tree"
"$python" -m zipfile -e "$root"/maclaurin-*-linux_aarch64.whl "$root/wheel"

# beside the tests there is no package but that of the wheel
mkdir "$root/tree"
cp -r tests pyproject.toml "$root/tree"
cd "$root/tree"
# what `sys.executable` is, so that tests can start a process
printf '#!/bin/sh\nexec qemu-aarch64 -0 "$0" "%s" "$@"\n' "$root/debian/usr/bin/python3.11" >"$root/python"
chmod +x "$root/python"
# qemu does not limit the memory of what it runs, as that test wants
[ $# -gt 0 ] || set -- tests/ops/test_native*.py --deselect tests/ops/test_native_limits.py::test_a_process_lives_on_without
export OMP_NUM_THREADS=1 PYTHONPATH="$root/wheel:$root/site:$root/tree" PYTHONDONTWRITEBYTECODE=1
export QEMU_CPU=neoverse-n1 QEMU_LD_PREFIX="$root/debian" PYTHONHOME="$root/debian/usr"
exec "$root/python" -P -m pytest -p no:cacheprovider -p tests.few_examples "$@"
