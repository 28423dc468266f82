# Builds the tool that compiles solutions and tests, and the runtime of both. The tool is native code if there is a
# linker, else bytecode. Prints a line "NAME BYTES" for each file, an empty line, and the files.
cp "$(dirname "$0")"/*.ml . || exit 1
flags="-w -a -I +compiler-libs"
parts="carry.ml describe.ml cut.ml tool.ml"
ocamlopt $flags -ccopt -s ocamlcommon.cmxa ocamlbytecomp.cmxa $parts -o tool 2>words ||
  ocamlc $flags ocamlcommon.cma ocamlbytecomp.cma $parts -o tool 2>words || { cat words >&2; exit 1; }
ocamlc -w -a -c carry.ml serve.ml judge.ml || exit 1
files="tool carry.cmi carry.cmo serve.cmi serve.cmo judge.cmi judge.cmo"
for file in $files; do echo "$file" $(wc -c <"$file"); done
echo
cat $files
