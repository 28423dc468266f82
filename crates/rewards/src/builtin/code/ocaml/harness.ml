(* Runs tests and prints, for each that passed, the nonce that it was given for it. The solution is compiled without
   knowing this module's name or interface. Nonces are read before the solution's first line runs. *)
let nonces =
  let rec read lines = match input_line stdin with line -> read (line :: lines) | exception End_of_file -> lines in
  List.rev (read [])

let run tests =
  let one nonce test =
    match test () with
    | () -> print_string ("\n" ^ nonce ^ "\n"); flush stdout
    | exception error -> prerr_endline (Printexc.to_string error)
  in
  List.iter2 one nonces tests

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
