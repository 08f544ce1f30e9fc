#!/usr/bin/env bash
# Build cuda_extension.so from kernels/. Usage: bash utils/compile.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m utils.compile "$@"
