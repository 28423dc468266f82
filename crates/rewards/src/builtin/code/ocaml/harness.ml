(* Runs tests and prints, for each that passed, the nonce that it was given for it. The solution is compiled without
   knowing this module's name or interface. Nonces are lines of standard input, which a solution cannot name, and go
   from there to standard output character by character: as a string, even one that is collected long since, a nonce
   could be found in what `Bytes.create` gives. *)
let run tests =
  let rec line each = match input_char stdin with '\n' -> () | c -> each c; line each in
  let one test =
    match test () with
    | () -> print_char '\n'; line print_char; print_char '\n'; flush stdout
    | exception error -> line ignore; prerr_endline (Printexc.to_string error)
  in
  List.iter one tests

(* What tests mean by these names, whatever the solution means by them. *)
module Restored = struct
  let ( = ) = Stdlib.( = )
  let ( <> ) = Stdlib.( <> )
  let ( < ) = Stdlib.( < )
  let ( > ) = Stdlib.( > )
  let ( <= ) = Stdlib.( <= )
  let ( >= ) = Stdlib.( >= )
  let ( == ) = Stdlib.( == )
  let ( != ) = Stdlib.( != )
  external ( && ) : bool -> bool -> bool = "%sequand"
  external ( || ) : bool -> bool -> bool = "%sequor"
  let not = Stdlib.not
  let ( ! ) = Stdlib.( ! )
  let ( := ) = Stdlib.( := )
  let ( |> ) = Stdlib.( |> )
  let ( @@ ) = Stdlib.( @@ )
  let ( @ ) = Stdlib.( @ )
  let ( ^ ) = Stdlib.( ^ )
  let ( + ), ( - ), ( * ), ( / ), ( mod ) = Stdlib.(( + ), ( - ), ( * ), ( / ), ( mod ))
  let ( +. ), ( -. ), ( *. ), ( /. ), ( ** ) = Stdlib.(( +. ), ( -. ), ( *. ), ( /. ), ( ** ))
  let ( ~- ), ( ~-. ) = Stdlib.(( ~- ), ( ~-. ))
  let compare = Stdlib.compare
  let min = Stdlib.min
  let max = Stdlib.max
  let abs = Stdlib.abs
  let abs_float = Stdlib.abs_float
  let sqrt = Stdlib.sqrt
  let fst = Stdlib.fst
  let snd = Stdlib.snd
  let ref = Stdlib.ref
  let ignore = Stdlib.ignore
  let raise = Stdlib.raise
  let failwith = Stdlib.failwith
  let float_of_int = Stdlib.float_of_int
  let string_of_int = Stdlib.string_of_int
  module Array = Stdlib.Array
  module Bytes = Stdlib.Bytes
  module Char = Stdlib.Char
  module Float = Stdlib.Float
  module Fun = Stdlib.Fun
  module Hashtbl = Stdlib.Hashtbl
  module List = Stdlib.List
  module Option = Stdlib.Option
  module Printf = Stdlib.Printf
  module Seq = Stdlib.Seq
  module Stdlib = Stdlib
  module String = Stdlib.String
end
