# Builds a solution with its tests, and says how far that went: a line "STATUS TREE-BYTES WORDS-BYTES", the solution's
# parse tree, the compiler's words, the program. $1 is the harness's module. Nothing of the solution runs here.
cp "$(dirname "$0")"/*.ml* . || exit 1
: >tree
: >words
: >program
build() {
  ocamlc -stop-after parsing -dparsetree solution.ml 2>tree || { cp tree words; status=syntax; return; }
  if [ "$2" = types ]; then
    ocamlc -c "any_$1.mli" 2>words || { status=harness; return; }
  fi
  # Only now is anything of ours in reach of a name.
  ocamlc -c solution.ml 2>words || { status=types; return; }
  [ "$2" != types ] || { status=ok; return; }
  ocamlc -w -a -stop-after parsing tests.ml 2>words.tests || { cp words.tests words; status=broken; return; }
  ocamlc -w -a -c "$1.ml" 2>words.tests || { cp words.tests words; status=harness; return; }
  ocamlc -w -a -o program "$1.cmo" solution.cmo tests.ml 2>words.tests || { cp words.tests words; status=tests; return; }
  status=ok
}
build "$1" "$2"
echo "$status" $(wc -c <tree) $(wc -c <words)
cat tree words program
