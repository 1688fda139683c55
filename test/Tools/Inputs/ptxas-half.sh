#!/bin/sh
# Assembles, but leaves half of the object and says that all went well.
ptxas "$@" || exit
while [ "$1" != -o ]; do shift; done
truncate -s $(($(wc -c < "$2") / 2)) "$2"
