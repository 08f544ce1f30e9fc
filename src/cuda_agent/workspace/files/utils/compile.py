"""Build cuda_extension.so from kernels/. Usage: python3 -m utils.compile"""

from utils import run

if __name__ == "__main__":
    run("compile")
