"""Say what limits model_new.py. Usage: python3 -m utils.inspection"""

from utils import run

if __name__ == "__main__":
    run("inspection")
