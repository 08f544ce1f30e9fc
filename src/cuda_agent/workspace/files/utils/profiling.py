"""Time eager, torch.compile and model_new.py. Usage: python3 -m utils.profiling"""

from utils import run

if __name__ == "__main__":
    run("profiling")
