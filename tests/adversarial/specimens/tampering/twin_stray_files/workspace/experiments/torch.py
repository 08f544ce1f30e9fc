raise SystemExit("not here")
