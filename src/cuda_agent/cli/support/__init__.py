"""What the commands share: options, output, endings and errors."""
