"""Compare model_new.py with model.py on fresh inputs. Usage: python3 -m utils.verification"""

from utils import run

if __name__ == "__main__":
    run("verification")
