(* Carries calls between the solution and its tests, two processes connected by two pipes. Both processes have this file
   and the same table of types. The tests' process trusts no byte that it reads: it builds each value by the type that
   the test has at that place, and refuses anything else. Mutable values keep their identity: both sides number them,
   and each message carries what has changed. Functions, lazy values and exceptions stay on their side, and the other
   side names them by number. *)

type block = { fields : int array; mutates : bool; received : bool }

(* Types. Where a type contains another one, an int is the index of that type in the table. *)
type desc =
  | Int
  | Char
  | String
  | Bytes
  | Float
  | Int32
  | Int64
  | Nativeint
  | Sum of int * block array  (* tuples, records, variants: number of constant constructors; the others by tag *)
  | Tags of (int * int) array  (* polymorphic variants: hash of the tag; type of its argument, or -1 *)
  | Floats of int * bool  (* a record of floats: number of fields; whether it is mutable *)
  | Array of int
  | Arrow of int * int
  | Lazy of int
  | Buffer
  | Exn
  | Opaque  (* abstract: sent by its structure; the solution gets back the value that it sent *)
  | Nothing  (* polymorphic: a type that no value has *)

type job = {
  types : desc array;
  values : int array;  (* the types at which tests use the solution's values, one for each use *)
  exceptions : int array array;  (* for each exception of the solution: the types of its arguments *)
  hidden : bool;  (* tests leave loops by `Exit`: an `Exit` that is carried becomes another exception *)
}

exception Foreign of int * string  (* an exception that only the other side knows: its number and text *)
exception Malformed of string
exception Cannot of string
exception Carried of exn

let longest = 1 lsl 26
let judging = ref false
let job = ref { types = [||]; values = [||]; exceptions = [||]; hidden = false }
let input = ref stdin
let output = ref stdout
let give_up : (string -> unit) ref = ref ignore
let failed = ref false  (* an assertion failed in a function of the tests that the solution called *)

external open_in_fd : int -> in_channel = "caml_ml_open_descriptor_in"
external open_out_fd : int -> out_channel = "caml_ml_open_descriptor_out"
external end_now : int -> 'a = "caml_sys_exit"

let gone why = !give_up why; end_now 1
let wrong why = raise (Malformed why)
let cannot what = raise (Cannot what)

(* Encoding of integers, strings and floats. *)

let put b n =
  let rec go n =
    if n lsr 7 = 0 then Buffer.add_char b (Char.unsafe_chr n)
    else (Buffer.add_char b (Char.unsafe_chr (n land 127 lor 128)); go (n lsr 7))
  in
  go ((n lsl 1) lxor (n asr 62))

let put_string b s = put b (String.length s); Buffer.add_string b s

type cursor = { text : string; mutable at : int }

let byte c =
  if c.at >= String.length c.text then wrong "the answer is too short";
  c.at <- c.at + 1;
  Char.code c.text.[c.at - 1]

let get c =
  let rec go shift n =
    let b = byte c in
    if shift > 56 then wrong "a number is too long";
    let n = n lor ((b land 127) lsl shift) in
    if b >= 128 then go (shift + 7) n else n
  in
  let n = go 0 0 in
  (n lsr 1) lxor (- (n land 1))

let get_size c =
  let n = get c in
  if n < 0 || n > String.length c.text - c.at then wrong "the answer is too short";
  n

let get_string c =
  let n = get_size c in
  c.at <- c.at + n;
  String.sub c.text (c.at - n) n

let put_bits b n = Buffer.add_int64_le b n

let get_bits c =
  if String.length c.text - c.at < 8 then wrong "the answer is too short";
  c.at <- c.at + 8;
  String.get_int64_le c.text (c.at - 8)

let put_float b x = put_bits b (Int64.bits_of_float x)
let get_float c = Int64.float_of_bits (get_bits c)

(* Mutable values. *)

type shared = { id : int; value : Obj.t; ty : int; mutable last : string; mutable round : int }

let objects : (int, shared) Hashtbl.t = Hashtbl.create 64
let by_shape : (int, shared list) Hashtbl.t = Hashtbl.create 64
let next = ref 0
let round = ref 0  (* counts the calls that are not inside another call *)
let recent : shared list ref = ref []  (* mutable values used in this round, and some used before *)
let pending : shared Queue.t = Queue.create ()

let shape v = (Obj.size v lsl 8) lor Obj.tag v

let touch o =
  if o.round <> !round then (o.round <- !round; recent := o :: !recent)

let enter o =
  Hashtbl.replace objects o.id o;
  let key = shape o.value in
  Hashtbl.replace by_shape key (o :: Option.value (Hashtbl.find_opt by_shape key) ~default:[]);
  touch o

let refer b ty v =
  let same o = o.value == v && o.ty = ty in
  match List.find_opt same (Option.value (Hashtbl.find_opt by_shape (shape v)) ~default:[]) with
  | Some o -> touch o; put b o.id
  | None ->
    next := !next + 2;
    let o = { id = !next + Bool.to_int !judging; value = v; ty; last = ""; round = -1 } in
    enter o;
    Queue.add o pending;
    put b o.id

let begin_round () =
  incr round;
  (* Only some of the values used in earlier rounds are checked for changes, so that rounds do not become ever
     slower. *)
  let rec some budget = function
    | o :: rest when budget > 0 -> o :: some (budget - 1 - Obj.size o.value) rest
    | _ -> []
  in
  recent := some 4096 !recent

(* Functions and exceptions, by number. *)

let functions : (int, Obj.t * int) Hashtbl.t = Hashtbl.create 64
let proxies : (Obj.t * int * int) list ref = ref []
let raised : (int, exn) Hashtbl.t = Hashtbl.create 8
let known : (Obj.t * int array) array ref = ref [||]

let kept : (int, Obj.t) Hashtbl.t = Hashtbl.create 64
let copies : (Obj.t * int) list ref = ref []

let fresh table value =
  let id = Hashtbl.length table in
  Hashtbl.replace table id value;
  id

let first n list = List.filteri (fun i _ -> i < n) list

let depth = ref 0  (* the current nesting depth of calls *)
let statics : Obj.t array ref = ref [||]

(* The types that each table begins with: arguments of the standard library's exceptions. *)
let first_types = [| String; Sum (0, [| { fields = [| 0; 2; 2 |]; mutates = false; received = true } |]); Int |]

let standard =
  [|
    ([%extension_constructor Not_found], [||]);
    ([%extension_constructor Failure], [| 0 |]);
    ([%extension_constructor Invalid_argument], [| 0 |]);
    ([%extension_constructor Division_by_zero], [||]);
    ([%extension_constructor End_of_file], [||]);
    ([%extension_constructor Stack_overflow], [||]);
    ([%extension_constructor Out_of_memory], [||]);
    ([%extension_constructor Sys_error], [| 0 |]);
    ([%extension_constructor Match_failure], [| 1 |]);
    ([%extension_constructor Assert_failure], [| 1 |]);
    ([%extension_constructor Exit], [||]);
    ([%extension_constructor Stack.Empty], [||]);
    ([%extension_constructor Queue.Empty], [||]);
    ([%extension_constructor Lazy.Undefined], [||]);
    ([%extension_constructor Scanf.Scan_failure], [| 0 |]);
  |]

(* Encoding and decoding of values. *)

let desc ty = !job.types.(ty)

let rec encode b ty (v : Obj.t) =
  match desc ty with
  | Int | Char -> put b (Obj.obj v)
  | String -> put_string b (Obj.obj v)
  | Float -> put_float b (Obj.obj v)
  | Int32 -> put_bits b (Int64.of_int32 (Obj.obj v))
  | Int64 -> put_bits b (Obj.obj v)
  | Nativeint -> put_bits b (Int64.of_nativeint (Obj.obj v))
  | Sum (_, blocks) ->
    if Obj.is_int v then put b (Obj.obj v)
    else begin
      let tag = Obj.tag v in
      put b (-1 - tag);
      let block = blocks.(tag) in
      if block.mutates then refer b ty v
      else begin
        let last = Array.length block.fields - 1 in
        for i = 0 to last - 1 do encode b block.fields.(i) (Obj.field v i) done;
        if Buffer.length b > longest then cannot "a value that is too large";
        encode b block.fields.(last) (Obj.field v last)
      end
    end
  | Tags tags ->
    if Obj.is_int v then put b (Obj.obj v)
    else begin
      let hash : int = Obj.obj (Obj.field v 0) in
      put b hash;
      let found = List.find_opt (fun (own, arg) -> own = hash && arg >= 0) (Array.to_list tags) in
      match found with Some (_, arg) -> encode b arg (Obj.field v 1) | None -> cannot "a variant of an open type"
    end
  | Floats (n, false) -> for i = 0 to n - 1 do put_float b (Obj.double_field v i) done
  | Floats (_, true) | Bytes | Buffer -> refer b ty v
  | Array _ -> if Obj.size v = 0 then put b 0 else refer b ty v
  | Arrow _ ->
    (match List.find_opt (fun (own, _, t) -> own == v && t = ty) !proxies with
     | Some (_, id, _) -> put b 1; put b id
     | None -> put b 0; put b (fresh functions (v, ty)))
  | Lazy _ ->
    put b (fresh functions (v, ty))
  | Exn -> encode_exn b (Obj.obj v)
  | Opaque -> encode_opaque b v
  | Nothing -> cannot "a value of any type"

(* Encodes a value of an abstract type by its structure. To send back a copy of a value of the solution, the tests'
   process sends the number of that value. *)
and encode_opaque b v =
  if Obj.is_int v then (put b 0; put b (Obj.obj v))
  else if !judging then
    match List.find_opt (fun (own, _) -> own == v) !copies with
    | Some (_, id) -> put b 7; put b id
    | None -> structure b longest v
  else begin
    (* The number by which the tests' process can send this value back. *)
    put b 7;
    put b (fresh kept v);
    let from = Buffer.length b in
    try structure b (from + 1 lsl 20) v with Cannot _ | Stack_overflow -> Buffer.truncate b from; put b 5
  end

and structure b most v =
  if Buffer.length b > most then cannot "a value that is too large";
  if Obj.is_int v then (put b 0; put b (Obj.obj v))
  else
    let tag = Obj.tag v in
    if tag = Obj.string_tag then (put b 1; put_string b (Obj.obj v))
    else if tag = Obj.double_tag then (put b 2; put_float b (Obj.obj v))
    else if tag = Obj.double_array_tag then begin
      put b 3;
      put b (Obj.size v);
      for i = 0 to Obj.size v - 1 do put_float b (Obj.double_field v i) done
    end
    else if tag = Obj.forward_tag then structure b most (Obj.field v 0)
    else if tag < Obj.lazy_tag then begin
      put b 4;
      put b tag;
      put b (Obj.size v);
      let last = Obj.size v - 1 in
      for i = 0 to last - 1 do structure b most (Obj.field v i) done;
      if last >= 0 then structure b most (Obj.field v last)
    end
    else if !judging then cannot "a function, an object or a lazy value of unknown type"
    else put b 5

and encode_exn b e =
  let slot = Obj.Extension_constructor.of_val e in
  let rec find i = if i = Array.length !known then -1 else if fst !known.(i) == Obj.repr slot then i else find (i + 1) in
  let i = if e == Exit && !job.hidden then -1 else find 0 in
  put b i;
  if i >= 0 then Array.iteri (fun k ty -> encode b ty (Obj.field (Obj.repr e) (k + 1))) (snd !known.(i))
  else
    match e with
    | Foreign (id, _) -> put b 1; put b id
    | _ -> put b 0; put b (fresh raised e); put_string b (try Printexc.to_string e with _ -> "an exception")

(* Decodes a value of type `ty`. Anything else is refused here, since no other code checks it. *)
let rec decode c ty : Obj.t =
  let number = Obj.repr in
  match desc ty with
  | Int -> number (get c)
  | Char ->
    let n = get c in
    if n < 0 || n > 255 then wrong "no character";
    number n
  | String -> Obj.repr (get_string c)
  | Float -> Obj.repr (get_float c)
  | Int32 -> Obj.repr (Int64.to_int32 (get_bits c))
  | Int64 -> Obj.repr (get_bits c)
  | Nativeint -> Obj.repr (Int64.to_nativeint (get_bits c))
  | Sum _ ->
    (* Tail recursion over the last fields: lists can be longer than the stack. *)
    let top = Obj.new_block 0 1 in
    let rec into block at ty =
      match desc ty with
      | Sum (constants, blocks) ->
        let n = get c in
        if n >= 0 then begin
          if n >= constants then wrong "no such constructor";
          Obj.set_field block at (number n)
        end
        else begin
          let tag = -1 - n in
          if tag >= Array.length blocks || not blocks.(tag).received then wrong "no such constructor";
          if blocks.(tag).mutates then Obj.set_field block at (referred c ty (Some tag))
          else begin
            let fields = blocks.(tag).fields in
            let last = Array.length fields - 1 in
            let own = Obj.new_block tag (last + 1) in
            for i = 0 to last - 1 do Obj.set_field own i (decode c fields.(i)) done;
            Obj.set_field block at own;
            into own last fields.(last)
          end
        end
      | _ -> Obj.set_field block at (decode c ty)
    in
    into top 0 ty;
    Obj.field top 0
  | Tags tags ->
    let n = get c in
    (match List.find_opt (fun (hash, _) -> hash = n) (Array.to_list tags) with
     | None -> wrong "no such variant"
     | Some (_, -1) -> number n
     | Some (_, arg) ->
       let own = Obj.new_block 0 2 in
       Obj.set_field own 0 (number n);
       Obj.set_field own 1 (decode c arg);
       own)
  | Floats (n, false) -> Obj.repr (Array.init n (fun _ -> get_float c))
  | Floats (_, true) | Bytes | Buffer -> referred c ty None
  | Array _ -> referred c ty None
  | Arrow (_, _) -> if get c = 1 then own_function (get c) ty else proxy (get c) ty
  | Lazy t ->
    let id = get c in
    Obj.repr (lazy (ask_function id None t))
  | Exn -> Obj.repr (decode_exn c)
  | Opaque -> decode_opaque c
  | Nothing -> wrong "a value of any type"

and referred c ty tag =
  match get c with
  | 0 when (match desc ty with Array _ -> true | _ -> false) -> Obj.repr [||]
  | id ->
    (match Hashtbl.find_opt objects id with
     | Some o when o.ty = ty && Option.value tag ~default:(Obj.tag o.value) = Obj.tag o.value -> touch o; o.value
     | _ -> wrong "no such object")

and own_function id ty =
  match Hashtbl.find_opt functions id with
  | Some (f, own) when own = ty -> f
  | _ -> wrong "no such function"

and proxy id ty =
  let from, into = match desc ty with Arrow (from, into) -> (from, into) | _ -> wrong "no function" in
  let f = Obj.repr (fun (x : Obj.t) -> ask_function id (Some (from, x)) into) in
  proxies := (f, id, ty) :: first 63 !proxies;
  f

and decode_opaque c =
  match get c with
  | 0 -> Obj.repr (get c)
  | 7 when !judging ->
    let id = get c in
    let copy = decode_structure c (get c) in
    copies := (copy, id) :: (if List.length !copies < 4096 then !copies else first 2048 !copies);
    copy
  | 7 -> (match Hashtbl.find_opt kept (get c) with Some v -> v | None -> wrong "no such value")
  | kind -> decode_structure c kind

and decode_structure c kind =
  match kind with
  | 0 -> Obj.repr (get c)
  | 1 -> Obj.repr (get_string c)
  | 2 -> Obj.repr (get_float c)
  | 3 ->
    let n = get_size c in
    Obj.repr (Array.init n (fun _ -> get_float c))
  | 4 ->
    let tag = get c in
    let n = get_size c in
    if tag < 0 || tag >= Obj.lazy_tag then wrong "no such block";
    if n = 0 then Obj.repr [||]
    else begin
      let own = Obj.new_block tag n in
      for i = 0 to n - 1 do Obj.set_field own i (decode_structure c (get c)) done;
      own
    end
  | 5 ->
    (* Decoded as a function: like the original, it cannot be compared. *)
    let unknown = ref 0 in
    Obj.repr (fun () -> !unknown)
  | _ -> wrong "no such structure"

and decode_exn c : exn =
  let i = get c in
  if i >= Array.length !known then wrong "no such exception";
  if i >= 0 then begin
    let slot, args = !known.(i) in
    if args = [||] then (Obj.obj slot : exn)
    else begin
      let own = Obj.new_block 0 (1 + Array.length args) in
      Obj.set_field own 0 slot;
      Array.iteri (fun k ty -> Obj.set_field own (k + 1) (decode c ty)) args;
      (Obj.obj own : exn)
    end
  end
  else if get c = 1 then
    match Hashtbl.find_opt raised (get c) with Some e -> e | None -> wrong "no such exception"
  else
    let id = get c in
    Foreign (id, get_string c)

(* Messages: new mutable values, changed contents of mutable values, and a call or reply. *)

and contents b o =
  let v = o.value in
  match desc o.ty with
  | Sum (_, blocks) -> Array.iteri (fun i ty -> encode b ty (Obj.field v i)) blocks.(Obj.tag v).fields
  | Array t ->
    if Obj.tag v = Obj.double_array_tag then for i = 0 to Obj.size v - 1 do put_float b (Obj.double_field v i) done
    else for i = 0 to Obj.size v - 1 do encode b t (Obj.field v i) done
  | Floats (n, _) -> for i = 0 to n - 1 do put_float b (Obj.double_field v i) done
  | Bytes -> put_string b (Obj.obj v)
  | Buffer -> put_string b (Buffer.contents (Obj.obj v))
  | _ -> assert false

and fill o text =
  let c = { text; at = 0 } in
  let v = o.value in
  (match desc o.ty with
   | Sum (_, blocks) -> Array.iteri (fun i ty -> Obj.set_field v i (decode c ty)) blocks.(Obj.tag v).fields
   | Array t ->
     if Obj.tag v = Obj.double_array_tag then
       for i = 0 to Obj.size v - 1 do Obj.set_double_field v i (get_float c) done
     else
       for i = 0 to Obj.size v - 1 do
         let x = decode c t in
         if Obj.is_block x && Obj.tag x = Obj.double_tag then wrong "a number outside of an array of numbers";
         Obj.set_field v i x
       done
   | Floats (n, _) -> for i = 0 to n - 1 do Obj.set_double_field v i (get_float c) done
   | Bytes ->
     let s = get_string c and own : bytes = Obj.obj v in
     if String.length s <> Bytes.length own then wrong "another length";
     Bytes.blit_string s 0 own 0 (String.length s)
   | Buffer ->
     let own : Buffer.t = Obj.obj v in
     Buffer.clear own;
     Buffer.add_string own (get_string c)
   | _ -> assert false);
  o.last <- text

and allocate id ty tag size =
  let value =
    match desc ty with
    | Sum (_, blocks) when tag >= 0 && tag < Array.length blocks && blocks.(tag).mutates && blocks.(tag).received ->
      Obj.new_block tag (Array.length blocks.(tag).fields)
    | Array t when size > 0 ->
      (match desc t with
       | Float -> Obj.repr (Array.make size 0.)
       | Opaque when tag = Obj.double_array_tag -> Obj.repr (Array.make size 0.)
       | _ -> Obj.repr (Array.make size 0))
    | Floats (n, true) -> Obj.repr (Array.make n 0.)
    | Bytes -> Obj.repr (Bytes.create size)
    | Buffer -> Obj.repr (Buffer.create 16)
    | _ -> wrong "no such object"
  in
  if id land 1 = Bool.to_int !judging || Hashtbl.mem objects id then wrong "not a new object";
  enter { id; value; ty; last = ""; round = -1 }

and send say =
  let said = Buffer.create 64 and head = Buffer.create 64 and changed = Buffer.create 64 in
  say said;
  let news = ref 0 and changes = ref 0 in
  let change o =
    let b = Buffer.create 64 in
    contents b o;
    let text = Buffer.contents b in
    if text <> o.last then begin
      o.last <- text;
      incr changes;
      put changed o.id;
      put_string changed text
    end
  in
  let rec rest () =
    match Queue.take_opt pending with
    | None -> ()
    | Some o ->
      incr news;
      put head o.id;
      put head o.ty;
      put head (Obj.tag o.value);
      put head (match desc o.ty with Bytes -> Bytes.length (Obj.obj o.value) | _ -> Obj.size o.value);
      change o;
      if Buffer.length changed > longest then cannot "a value that is too large";
      rest ()
  in
  rest ();
  List.iter change !recent;
  rest ();
  let whole = Buffer.create 64 in
  put whole !news;
  Buffer.add_buffer whole head;
  put whole !changes;
  Buffer.add_buffer whole changed;
  Buffer.add_buffer whole said;
  if Buffer.length whole > longest then cannot "a value that is too large";
  try
    output_binary_int !output (Buffer.length whole);
    Buffer.output_buffer !output whole;
    flush !output
  with Sys_error _ -> gone "the program ended"

and receive () =
  let text =
    try
      let n = input_binary_int !input in
      if n < 0 || n > longest + 64 then gone "an answer is too long";
      really_input_string !input n
    with End_of_file | Sys_error _ -> gone "the program ended"
  in
  let c = { text; at = 0 } in
  for _ = 1 to get_size c do
    let id = get c in
    let ty = get c in
    let tag = get c in
    let size = get_size c in
    if ty < 0 || ty >= Array.length !job.types then wrong "no such type";
    allocate id ty tag size
  done;
  let changes = List.init (get_size c) (fun _ -> let id = get c in (id, get_string c)) in
  let change (id, text) =
    match Hashtbl.find_opt objects id with Some o -> fill o text; touch o | None -> wrong "no such object"
  in
  List.iter change changes;
  c

(* Sends a call, and answers the other side's calls until the reply comes. *)
and ask say into =
  if !judging && !depth = 0 then begin_round ();
  incr depth;
  post say;
  let rec wait () =
    let c = receive () in
    match get c with
    | 0 -> decode c into
    | 1 -> raise (Carried (decode_exn c))
    | kind -> answer kind c; wait ()
  in
  match wait () with
  | v -> decr depth; v
  | exception Carried e -> decr depth; raise e
  | exception Malformed why when !judging -> gone ("an invalid answer: " ^ why)

(* If a test passes a value that cannot be carried, the test is broken for every solution. *)
and post say = try send say with Cannot what when !judging -> !give_up ("?the test gives the solution " ^ what); end_now 1

and ask_function id arg into =
  let say b =
    put b 2;
    put b id;
    match arg with Some (from, x) -> encode b from x | None -> ()
  in
  ask say into

and answer kind c =
  let place = get c in
  let value, ty =
    match Hashtbl.find_opt functions place with
    | Some own when kind = 2 -> own
    | None when place < 0 && not !judging -> (!statics.(-1 - place), !job.values.(-1 - place))
    | _ -> wrong "no such function"
  in
  match kind, desc ty with
  | 2, Arrow (from, into) ->
    let x = decode c from in
    reply into (fun () -> (Obj.obj value : Obj.t -> Obj.t) x)
  | 2, Lazy t -> reply t (fun () -> Lazy.force (Obj.obj value : Obj.t Lazy.t))
  | 3, _ when place < 0 -> reply ty (fun () -> value)
  | _ -> wrong "no such call"

and reply ty work =
  let raises e = post (fun b -> put b 1; encode_exn b e) in
  match work () with
  | v -> (try post (fun b -> put b 0; encode b ty v) with (Cannot _ | Stack_overflow | Out_of_memory) as e -> raises e)
  | exception e ->
    (* The solution may catch it, so it is noted here. *)
    (match e with Assert_failure _ -> failed := true | _ -> ());
    raises e

let prepare text exceptions =
  job := Marshal.from_string text 0;
  let own = Array.mapi (fun i slot -> (slot, !job.exceptions.(i))) exceptions in
  let standard = Array.map (fun (slot, args) -> (Obj.repr slot, args)) standard in
  known := Array.append standard own
