(* Runs in the tests' process. Writes lines: R at the start; P and the number of a test that passed; F, the number of a
   test that failed, and why; U and the number of one that reached no assertion; last E (the end), B and why the tests cannot be run, or G and why the solution no longer
   answers. *)
let verdicts = ref stderr
let pass = ref [||]
let calls = ref 0
let current = ref 0

let tell kind text =
  let line = String.map (fun c -> if c < ' ' then ' ' else c) text in
  output_string !verdicts (kind ^ " " ^ line ^ "\n");
  flush !verdicts

let why e =
  match e with
  | Carry.Foreign (_, text) -> text
  | Assert_failure _ -> "false"
  | e -> (try Printexc.to_string e with _ -> "an exception")

let give_up text =
  match text.[0] with
  | '?' -> tell "B" (String.sub text 1 (String.length text - 1))
  | _ -> tell "G" text

let failed k reason =
  (* A test that fails before it has called the solution would fail for every solution: the tests are broken. *)
  if !calls = 0 then (tell "B" ("a test fails before it calls the solution: " ^ reason); Carry.end_now 0);
  tell "F" (string_of_int k ^ " " ^ reason)

let start text count exceptions =
  Carry.judging := true;
  Carry.prepare text exceptions;
  Carry.give_up := give_up;
  Sys.set_signal Sys.sigpipe Sys.Signal_ignore;
  Carry.input := Carry.open_in_fd 3;
  Carry.output := Carry.open_out_fd 4;
  verdicts := Carry.open_out_fd 5;
  pass := Array.make count None;
  tell "R" "";
  Printexc.set_uncaught_exception_handler (fun e _ ->
      if !calls = 0 then tell "B" (why e) else tell "G" (why e);
      Carry.end_now 0)

let settle k reason =
  if !pass.(k) = None then begin
    let reason = if reason = None && !Carry.failed then Some "false, in a function of the tests" else reason in
    !pass.(k) <- Some (reason = None);
    match reason with None -> tell "P" (string_of_int k) | Some reason -> failed k reason
  end

(* Runs assertion k and reports its verdict. *)
let check k test =
  match test () with
  | true -> settle k None
  | false -> settle k (Some "false")
  | exception e -> settle k (Some (why e))

(* The number of reached assertions that are not separate checks. *)
let reached = ref 0
let note () = incr reached

(* Runs code that contains assertions k to l. An exception fails those that have no verdict yet, or the last one.
   `whole` is the number under which the rest of the code, which is not an assertion, gets a verdict, or -1. If `open_`, all
   assertions of the code are in the rest, and one of them must be reached. *)
let item k l whole open_ (work : unit -> unit) =
  let before = !reached and calls_before = !calls in
  match work () with
  | () ->
    if whole >= 0 && open_ = 1 && !reached = before && !calls > calls_before && not !Carry.failed then begin
      !pass.(whole) <- Some false;
      tell "U" (string_of_int whole)
    end
    else if whole >= 0 then settle whole None
    else if !Carry.failed then failed l "false, in a function of the tests"
  | exception e ->
    let rest = List.filter (fun i -> !pass.(i) = None) (List.init (l - k + 1) (fun i -> k + i)) in
    if rest = [] then failed l (why e) else List.iter (fun i -> settle i (Some (why e))) rest

let none = -1
let single f = f

(* The value of the solution that the tests use at place k. If it is a function, calling it calls the solution. *)
let use k : 'a =
  incr calls;
  let ty = !Carry.job.values.(k) in
  match Carry.desc ty with
  | Carry.Arrow (from, into) ->
    let apply (x : Obj.t) = Carry.ask_function (-1 - k) (Some (from, x)) into in
    Obj.magic apply
  | _ -> Obj.magic (Carry.ask (fun b -> Carry.put b 3; Carry.put b (-1 - k)) ty)

let finish () = tell "E" ""; Carry.end_now 0
