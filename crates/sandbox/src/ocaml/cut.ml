(* Parses the tests, cuts them into assertions that count separately, and finds the names that mean the solution's. *)
open Parsetree

exception Broken of string  (* the tests cannot be run with any solution *)

let contains text part =
  let n = String.length part in
  let rec from i = i + n <= String.length text && (String.sub text i n = part || from (i + 1)) in
  from 0

let dotted text =
  match String.split_on_char '.' text with
  | [] -> Longident.Lident text
  | head :: rest -> List.fold_left (fun l name -> Longident.Ldot (l, name)) (Longident.Lident head) rest

(* The compiler's message for an exception; None if the exception is not an error in source code. *)
let words_of e =
  match Location.error_of_exn e with
  | Some (`Ok report) ->
    let text = Format.asprintf "%a" (fun f (m : Location.msg) -> m.txt f) report.main in
    let place = report.main.loc in
    Some (place, Printf.sprintf "line %d: %s" place.loc_start.pos_lnum (String.concat " " (String.split_on_char '\n' text)))
  | _ -> None

let parse name text =
  let lexbuf = Lexing.from_string text in
  Location.init lexbuf name;
  Parse.implementation lexbuf

(* Cutting the tests into assertions. *)

let ident text = Ast_helper.Exp.ident (Location.mknoloc (dotted text))
let number n = Ast_helper.Exp.constant (Ast_helper.Const.int n)
let delayed e = Ast_helper.Exp.fun_ Nolabel None (Ast_helper.Pat.any ()) e
let call f args = Ast_helper.Exp.apply (ident f) (List.map (fun arg -> (Asttypes.Nolabel, arg)) args)
let unit_pattern p = match p.ppat_desc with
  | Ppat_construct ({ txt = Lident "()"; _ }, None) | Ppat_any -> true
  | _ -> false

let asserts e =
  let found = ref false in
  let expr it e =
    (match e.pexp_desc with Pexp_assert _ -> found := true | _ -> ());
    Ast_iterator.default_iterator.expr it e
  in
  let it = { Ast_iterator.default_iterator with expr } in
  it.expr it e;
  !found

let is_false e = match e.pexp_desc with Pexp_construct ({ txt = Lident "false"; _ }, None) -> true | _ -> false

(* The number of assertions in an expression, without `assert false`. *)
let looking e =
  let found = ref 0 in
  let expr it e =
    (match e.pexp_desc with Pexp_assert c when not (is_false c) -> incr found | _ -> ());
    Ast_iterator.default_iterator.expr it e
  in
  let it = { Ast_iterator.default_iterator with expr } in
  it.expr it e;
  !found

(* Notes when an assertion is reached. *)
let noting judge =
  let unit = Ast_helper.Exp.construct (Location.mknoloc (Longident.Lident "()")) None in
  let expr it e =
    let e = Ast_mapper.default_mapper.expr it e in
    match e.pexp_desc with
    | Pexp_assert c when not (is_false c) ->
      { e with pexp_desc = Pexp_assert (Ast_helper.Exp.sequence (call (judge ^ ".note") [ unit ]) c) }
    | _ -> e
  in
  { Ast_mapper.default_mapper with expr }

let noted judge e = let it = noting judge in it.expr it e
let noted_item judge i = let it = noting judge in it.structure_item it i

let mentions names e =
  let found = ref false in
  let expr it e =
    (match e.pexp_desc with
     | Pexp_ident { txt = Lident name; _ } when List.mem name names -> found := true
     | _ -> ());
    Ast_iterator.default_iterator.expr it e
  in
  let it = { Ast_iterator.default_iterator with expr } in
  it.expr it e;
  !found

(* Functions of the tests that contain assertions, or call such functions. *)
let helpers items =
  let is_function e = match e.pexp_desc with Pexp_fun _ | Pexp_function _ -> true | _ -> false in
  let add found { pvb_pat; pvb_expr; _ } =
    match pvb_pat.ppat_desc with
    | Ppat_var { txt; _ } when is_function pvb_expr && (looking pvb_expr > 0 || mentions found pvb_expr) -> txt :: found
    | _ -> found
  in
  let item found i = match i.pstr_desc with Pstr_value (_, bindings) -> List.fold_left add found bindings | _ -> found in
  List.fold_left item [] items

(* Turns each assertion that an expression always reaches into a separate check, numbered from `next`. The second result
   is whether the expression contains anything else. *)
let rec cut judge next e =
  let more = ref false in
  let rec spine e =
    let desc =
      match e.pexp_desc with
      | Pexp_sequence (a, b) ->
        let a = spine a in
        Pexp_sequence (a, spine b)
      | Pexp_let (r, [ ({ pvb_pat; pvb_expr; _ } as binding) ], b) when unit_pattern pvb_pat && asserts pvb_expr ->
        let first = spine pvb_expr in
        Pexp_let (r, [ { binding with pvb_expr = first } ], spine b)
      | Pexp_let (r, bindings, b) ->
        let binding b = { b with pvb_expr = noted judge b.pvb_expr } in
        Pexp_let (r, List.map binding bindings, spine b)
      | Pexp_open (m, b) -> Pexp_open (m, spine b)
      | Pexp_letmodule (n, m, b) -> Pexp_letmodule (n, m, spine b)
      | Pexp_letexception (x, b) -> Pexp_letexception (x, spine b)
      | Pexp_constraint (b, t) when asserts b -> Pexp_constraint (spine b, t)
      | Pexp_assert c when not (is_false c) ->
        let k = !next in
        incr next;
        (call (judge ^ ".check") [ number k; delayed c ]).pexp_desc
      | Pexp_construct ({ txt = Lident "()"; _ }, None) -> e.pexp_desc
      | _ ->
        if asserts e then more := true;
        (noted judge e).pexp_desc
    in
    { e with pexp_desc = desc }
  in
  let cut = spine e in
  (cut, !more)

(* Turns an expression into a test, with its assertions as checks. `helpers` are functions with assertions. *)
and test judge next conditions helpers e =
  let first = !next in
  let has = asserts e in
  let all = looking e and helped = mentions helpers e in
  let e, more =
    if has then cut judge next e
    else if conditions then begin
      incr next;
      (call (judge ^ ".check") [ number first; delayed e ], false)
    end
    else (e, true)
  in
  (* Whether the solution may keep the test from reaching any of its assertions. *)
  let open_ = !next = first && (all > 0 || helped) in
  let whole = if more || !next = first then (incr next; !next - 1) else -1 in
  let whole = if whole < 0 then ident (judge ^ ".none") else number whole in
  call (judge ^ ".item") [ number first; number (!next - 1); whole; number (Bool.to_int open_); delayed e ]

let test_items judge next conditions helpers items =
  let item it =
    match it.pstr_desc with
    | Pstr_eval (e, attributes) ->
      { it with pstr_desc = Pstr_eval (test judge next conditions helpers e, attributes) }
    | Pstr_value (r, [ ({ pvb_pat; pvb_expr; _ } as binding) ])
      when unit_pattern pvb_pat || (match pvb_expr.pexp_desc with Pexp_assert _ -> true | _ -> false) ->
      (* `let _ = f 1 = 2` is a test, too. *)
      let conditions = conditions && (match pvb_pat.ppat_desc with Ppat_any -> true | _ -> false) in
      { it with pstr_desc = Pstr_value (r, [ { binding with pvb_expr = test judge next conditions helpers pvb_expr } ]) }
    | _ -> noted_item judge it
  in
  List.map item items

let trimmed text =
  let text = String.trim text in
  let n = String.length text in
  if n >= 2 && String.sub text (n - 2) 2 = ";;" then String.trim (String.sub text 0 (n - 2)) else text

(* Parses the code before the tests, and the tests. *)
let parsed_tests setup tests =
  let broken e = match words_of e with Some (_, words) -> raise (Broken words) | None -> raise e in
  match (parse "setup.ml" setup, List.map (fun test -> parse "tests.ml" (trimmed test)) tests) with
  | parsed -> parsed
  | exception first ->
    (match parse "tests.ml" (setup ^ "\n" ^ String.concat "\n" tests) with
     | whole -> ([], [ whole ])
     | exception _ -> broken first)

(* Names that the tests use, as written: values, modules, names that they bind, functions that they call; and whether
   they raise `Exit`. *)
let names items =
  let values = ref [] and modules = ref [] and bound = ref [] and called = ref [] and raises = ref false in
  let rec head = function Longident.Lident name -> name | Ldot (l, _) -> head l | Lapply (l, _) -> head l in
  let qualified l = match l with Longident.Lident _ -> () | l -> modules := (head l, l) :: !modules in
  let expr it e =
    (match e.pexp_desc with
     | Pexp_ident { txt = Lident name; _ } -> values := name :: !values
     | Pexp_ident { txt; _ } | Pexp_construct ({ txt; _ }, _) | Pexp_field (_, { txt; _ }) -> qualified txt
     | Pexp_apply ({ pexp_desc = Pexp_ident { txt = Lident "raise" | Lident "raise_notrace"; _ }; _ },
                   (_, { pexp_desc = Pexp_construct ({ txt = Lident "Exit" | Ldot (Lident "Stdlib", "Exit"); _ }, _); _ })
                   :: _) -> raises := true
     | _ -> ());
    (match e.pexp_desc with
     | Pexp_apply ({ pexp_desc = Pexp_ident { txt = Lident name; _ }; _ }, _) -> called := name :: !called
     | _ -> ());
    Ast_iterator.default_iterator.expr it e
  and pat it p =
    (match p.ppat_desc with
     | Ppat_var n | Ppat_alias (_, n) -> bound := n.txt :: !bound
     | Ppat_construct ({ txt; _ }, _) -> qualified txt
     | _ -> ());
    Ast_iterator.default_iterator.pat it p
  and typ it t =
    (match t.ptyp_desc with Ptyp_constr ({ txt; _ }, _) -> qualified txt | _ -> ());
    Ast_iterator.default_iterator.typ it t
  and module_expr it m =
    (match m.pmod_desc with Pmod_ident { txt; _ } -> modules := (head txt, Longident.Lident "") :: !modules | _ -> ());
    Ast_iterator.default_iterator.module_expr it m
  and module_binding it m =
    Option.iter (fun name -> bound := name :: !bound) m.pmb_name.txt;
    Ast_iterator.default_iterator.module_binding it m
  in
  let it = { Ast_iterator.default_iterator with expr; pat; typ; module_expr; module_binding } in
  it.structure it items;
  (!values, !modules, !bound, !called, !raises)

let standard_value env name =
  match Env.find_value_by_name (Lident name) env with _ -> true | exception Not_found -> false

let standard_module env name =
  match Env.find_module_by_name (Lident name) env with
  | path, _ -> Describe.is_unit "Stdlib" path || Describe.is_unit ("Stdlib__" ^ name) path
  | exception Not_found -> false

(* Whether a qualified name exists in the standard library. *)
let known env lid =
  let find f = match f lid env with _ -> true | exception Not_found -> false in
  lid = Longident.Lident "" || find Env.find_value_by_name || find Env.find_type_by_name || find Env.find_constructor_by_name
  || find Env.find_label_by_name || find Env.find_module_by_name

let word name = match name.[0] with 'a' .. 'z' | '_' -> true | _ -> false

(* Values of the standard library that the tests use by name. *)
let shared env items =
  let values, _, bound, _, _ = names items in
  List.sort_uniq compare (List.filter (fun name -> standard_value env name && not (List.mem name bound)) values)

(* Names of the standard library that must mean the solution's here: the tests pass a constructor or record that the
   standard library lacks to the function of that name, whose argument in the standard library has a type without
   parameters. *)
let evident env items =
  let found = ref [] in
  let unknown e =
    match e.pexp_desc with
    | Pexp_construct ({ txt; _ }, _) ->
      (match Env.find_constructor_by_name txt env with _ -> false | exception Not_found -> true)
    | Pexp_record _ -> true
    | _ -> false
  in
  let plain name =
    match Env.find_value_by_name (Lident name) env with
    | _, { val_type; _ } ->
      (match (Btype.repr val_type).desc with
       | Tarrow (_, arg, _, _) -> (match (Btype.repr arg).desc with Tconstr (_, [], _) -> true | _ -> false)
       | _ -> false)
    | exception Not_found -> false
  in
  let expr it e =
    (match e.pexp_desc with
     | Pexp_apply ({ pexp_desc = Pexp_ident { txt = Lident name; _ }; _ }, args)
       when word name && plain name && List.exists (fun (_, arg) -> unknown arg) args -> found := name :: !found
     | _ -> ());
    Ast_iterator.default_iterator.expr it e
  in
  let it = { Ast_iterator.default_iterator with expr } in
  it.structure it items;
  !found

type plan = {
  values : string list;  (* names of the standard library that are the solution's in these tests *)
  modules : string list;
  leaves : bool;  (* tests leave loops by raising `Exit` *)
}

(* Finds the names of the standard library that mean the solution's in these tests: names in the column `entry_point`,
   and modules of which the tests use an item that the standard library's module lacks. If the tests use nothing else of
   the solution, also the functions that the tests call and the solution defines. *)
let plan env defined entry items =
  let values, modules, bound, called, leaves = names items in
  let entry = List.filter (fun name -> name <> "") (String.split_on_char ' ' (String.map (fun c -> if c = ',' then ' ' else c) entry)) in
  let upper name = name <> "" && Char.uppercase_ascii name.[0] = name.[0] && Char.lowercase_ascii name.[0] <> name.[0] in
  let own (head, lid) = standard_module env head && not (List.mem head bound) && not (known env lid) in
  let own_modules = List.sort_uniq compare (List.map fst (List.filter own modules) @ List.filter upper entry) in
  let asked = List.filter (fun name -> not (upper name)) entry in
  let meant = asked @ List.filter (fun name -> not (List.mem name bound)) (evident env items) in
  let free name = not (List.mem name bound) && not (standard_value env name) in
  let other (head, _) = not (standard_module env head) && not (List.mem head bound) in
  if meant <> [] || own_modules <> [] || List.exists free values || List.exists other modules then
    { values = meant; modules = own_modules; leaves }
  else
    let mine name = List.mem name defined in
    let values = List.filter (fun name -> word name && mine name && not (List.mem name bound)) called in
    let modules = List.filter (fun name -> mine name && not (List.mem name bound)) (List.map fst modules) in
    { values = List.sort_uniq compare values; modules = List.sort_uniq compare modules; leaves }

(* Returns a name that does not occur in the solution's text. *)
let fresh text name =
  let rec go name = if contains text name then go (name ^ "_") else name in
  go name

type names_of_ours = { solution : string; judge : string; stdlib : string }

let head ours plan reopen =
  let alias name of_ = Printf.sprintf "module %s = %s\n" name of_ in
  let own name = alias name (ours.solution ^ "." ^ name) in
  parse "head.ml"
    (alias ours.solution "Solution" ^ alias ours.judge "Judge" ^ alias ours.stdlib "Stdlib"
     ^ Printf.sprintf "open! %s\n" ours.solution
     ^ (if reopen then Printf.sprintf "open! %s\n" ours.stdlib else "")
     ^ alias "Stdlib" ours.stdlib
     ^ String.concat "" (List.map own plan.modules))

(* Opens the standard library again after each `open` of a solution's module: standard names keep their meaning. *)
let reopened ours own bound env items =
  let std = Ast_helper.Opn.mk ~override:Override (Ast_helper.Mod.ident (Location.mknoloc (Longident.Lident ours.stdlib))) in
  let of_solution m =
    match m.pmod_desc with
    | Pmod_ident { txt; _ } ->
      let rec head = function Longident.Lident name -> name | Ldot (l, _) -> head l | Lapply (l, _) -> head l in
      let name = head txt in
      (not (List.mem name bound)) && (List.mem name own || not (standard_module env name))
    | _ -> false
  in
  let expr it e =
    let e = Ast_mapper.default_mapper.expr it e in
    match e.pexp_desc with
    | Pexp_open (({ popen_expr; _ } as o), body) when of_solution popen_expr ->
      { e with pexp_desc = Pexp_open (o, Ast_helper.Exp.open_ std body) }
    | _ -> e
  and structure it items =
    let item i =
      match i.pstr_desc with
      | Pstr_open { popen_expr; _ } when of_solution popen_expr -> [ i; Ast_helper.Str.open_ std ]
      | _ -> [ i ]
    in
    List.concat_map item (Ast_mapper.default_mapper.structure it items)
  in
  let it = { Ast_mapper.default_mapper with expr; structure } in
  it.structure it items

(* Replaces the names in `plan.values` by those of the solution. *)
let renamed ours plan items =
  let expr it e =
    match e.pexp_desc with
    | Pexp_ident ({ txt = Lident name; _ } as l) when List.mem name plan.values ->
      { e with pexp_desc = Pexp_ident { l with txt = Ldot (Lident ours.solution, name) } }
    | _ -> Ast_mapper.default_mapper.expr it e
  in
  let it = { Ast_mapper.default_mapper with expr } in
  it.structure it items

(* Makes functions of the tests monomorphic, so that each of them uses the solution at one type. *)
let single ours items =
  let binding it b =
    let b = Ast_mapper.default_mapper.value_binding it b in
    match b.pvb_expr.pexp_desc with
    | Pexp_fun _ | Pexp_function _ | Pexp_ident _ -> { b with pvb_expr = call (ours.judge ^ ".single") [ b.pvb_expr ] }
    | _ -> b
  in
  let structure_item it i =
    match i.pstr_desc with Pstr_value (Recursive, _) -> i | _ -> Ast_mapper.default_mapper.structure_item it i in
  let expr it e =
    match e.pexp_desc with
    | Pexp_let (Recursive, b, body) -> { e with pexp_desc = Pexp_let (Recursive, b, it.Ast_mapper.expr it body) }
    | _ -> Ast_mapper.default_mapper.expr it e
  in
  let it = { Ast_mapper.default_mapper with value_binding = binding; structure_item; expr } in
  it.structure it items

