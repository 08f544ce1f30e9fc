print("verification passed")
