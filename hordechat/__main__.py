"""`python -m hordechat`: what the supervisor starts, so that no child depends on PATH."""

from hordechat.cli import main

if __name__ == "__main__":
    main(prog_name="hordechat")
