from inwit.cli import main

main()
