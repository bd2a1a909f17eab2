"""The plugin for Hugging Face Accelerate and transformers.Trainer. It is not built yet: there is nothing to import."""
