import sys
def main(): pass
