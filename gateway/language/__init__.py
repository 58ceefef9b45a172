"""The texts that people read, in their language.

The English text is in the code, the Simplified Chinese one in this package.
"""
