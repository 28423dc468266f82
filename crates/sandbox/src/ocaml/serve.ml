(* Runs in the solution's process: answers the calls of the tests. Nothing that happens here decides a test. *)
let serve text values exceptions =
  Carry.prepare text exceptions;
  Carry.statics := values;
  Carry.input := Carry.open_in_fd 3;
  Carry.output := Carry.open_out_fd 4;
  while true do
    Carry.begin_round ();
    let c = Carry.receive () in
    let kind = Carry.get c in
    Carry.answer kind c
  done
