(* Compiles a solution and its tests into two programs. `program` is the solution, with code that answers calls. `judge`
   is the tests, in which each use of a value of the solution is a call to the other process; it contains no code of the
   solution, whose types are those that the compiler has inferred. A name of the standard library in the tests means the
   standard library's. Writes to standard output how far that went, and both programs. Arguments: the directory of the
   source files and the runtime; `count` (count type errors) or `first` (stop at the first one); `strict` or `weak`
   (accept tests in which names of the standard library mean the solution's). *)
open Parsetree
open Typedtree
open Cut

exception Shadowed of string  (* the tests use this name of the standard library, and the solution defines it *)
exception Status of string * string

let read path =
  let file = open_in_bin path in
  let text = really_input_string file (in_channel_length file) in
  close_in file;
  text

(* Compiling, as `ocamlc` does. *)

let ours : string list ref = ref []

let begin_unit name =
  Location.input_name := name;
  (* File names of a directory are read when it is added, and not again. *)
  Compmisc.init_path ();
  List.iter Load_path.add_dir !ours;
  Env.reset_cache ();
  Env.set_unit_name (String.capitalize_ascii name);
  Translmod.reset ()

let emit name globals code =
  let file = open_out_bin (name ^ ".cmo") in
  let unit = String.capitalize_ascii (List.hd (String.split_on_char '-' name)) in
  let code = Bytegen.compile_implementation unit (Simplif.simplify_lambda code) in
  Emitcode.to_file file unit (name ^ ".cmo") ~required_globals:globals code;
  close_out file

let translate name structure coercion =
  let program = Translmod.transl_implementation (String.capitalize_ascii name) (structure, coercion) in
  Warnings.without_warnings (fun () -> emit name program.required_globals program.code)

let type_unit name parsed =
  begin_unit name;
  Typemod.type_implementation (name ^ ".ml") name (String.capitalize_ascii name) (Compmisc.initial_env ()) parsed

let compile name text =
  let typed = type_unit name (parse (name ^ ".ml") text) in
  translate name typed.structure typed.coercion

(* Compiling the solution. *)

(* Counts the ill-typed definitions, at most 5: the definition with the first error is replaced by values of any type,
   then the solution is typed again. *)
let type_errors parsed =
  let rec go found parsed =
    let env = Compmisc.initial_env () in
    let any = { Types.val_type = Btype.newgenvar (); val_kind = Val_reg; val_loc = Location.none; val_attributes = [];
                val_uid = Types.Uid.internal_not_actually_unique } in
    let env = Env.add_value (Ident.create_local "any'") any env in
    begin_unit "solution";
    match Typemod.type_structure env parsed with
    | _ -> found
    | exception e ->
      (match words_of e with
       | None -> raise e
       | Some _ when found + 1 = 5 -> 5
       | Some (loc, _) ->
         let at = loc.loc_start.pos_cnum in
         let holds item = item.pstr_loc.loc_start.pos_cnum <= at && at <= item.pstr_loc.loc_end.pos_cnum in
         let changed = ref false in
         let replaced item =
           match item.pstr_desc with
           | Pstr_value (_, bindings) when holds item && not !changed ->
             changed := true;
             let any = Ast_helper.Exp.ident (Location.mknoloc (Longident.Lident "any'")) in
             let bind { pvb_pat; _ } =
               let names = ref [] in
               let pat it p = (match p.ppat_desc with Ppat_var n | Ppat_alias (_, n) -> names := n.txt :: !names | _ -> ());
                 Ast_iterator.default_iterator.pat it p in
               let it = { Ast_iterator.default_iterator with pat } in
               it.pat it pvb_pat;
               List.map (fun n -> Ast_helper.Vb.mk (Ast_helper.Pat.var (Location.mknoloc n)) any) !names
             in
             (match List.concat_map bind bindings with
              | [] -> []
              | values -> [ { item with pstr_desc = Pstr_value (Nonrecursive, values) } ])
           | _ -> [ item ]
         in
         let next = List.concat_map replaced parsed in
         if !changed then go (found + 1) next else found + 1)
  in
  Warnings.without_warnings (fun () -> go 0 parsed)

let warnings = ref 0

(* Compiles the solution and returns its interface. *)
let solution text count =
  let error status e = match words_of e with Some (_, words) -> raise (Status (status, words)) | None -> raise e in
  let parsed = try parse "solution.ml" text with e -> error "syntax" e in
  let report loc warning =
    (match Location.default_warning_reporter loc warning with Some _ -> incr warnings | None -> ());
    None
  in
  Location.warning_reporter := report;
  let typed =
    try type_unit "solution" parsed
    with e ->
      (match words_of e with
       | Some (_, words) when count ->
         let found = type_errors parsed in
         raise (Status (Printf.sprintf "types%d" (max 1 found), words))
       | Some (_, words) -> raise (Status ("types1", words))
       | None -> raise e)
  in
  (try translate "solution" typed.structure typed.coercion with e -> error "types1" e);
  Location.warning_reporter := (fun _ _ -> None);
  typed.signature

(* The module that replaces the solution in the tests' process. It has the solution's exceptions, and nothing that can
   be called. *)
let rec stand_in env (signature : Types.signature) : Lambda.lambda =
  let nothing = Lambda.Lconst (Const_base (Const_int 0)) in
  let item : Types.signature_item -> Lambda.lambda option = function
    | Sig_value (_, { val_kind = Val_prim _; _ }, _) -> None
    | Sig_value _ | Sig_class _ -> Some nothing
    | Sig_typext (id, _, _, _) ->
      let fresh = Primitive.simple ~name:"caml_fresh_oo_id" ~arity:1 ~alloc:false in
      let number = Lambda.Lprim (Pccall fresh, [ nothing ], Loc_unknown) in
      let block = Lambda.Pmakeblock (Obj.object_tag, Immutable, None) in
      Some (Lprim (block, [ Lconst (Const_immstring (Ident.name id)); number ], Loc_unknown))
    | Sig_module (_, Mp_present, { md_type; _ }, _, _) ->
      (match Mtype.scrape env md_type with
       | Mty_signature inner -> Some (stand_in env inner)
       | _ -> Some nothing)
    | _ -> None
  in
  Lprim (Pmakeblock (0, Immutable, None), List.filter_map item signature, Loc_unknown)

(* Calls `each` on every item of a signature and of the modules inside it. *)
let rec walk env prefix (signature : Types.signature) each =
  List.iter (fun item ->
      each prefix item;
      match item with
      | Types.Sig_module (id, _, { md_type; _ }, _, _) ->
        (match Mtype.scrape env md_type with
         | Mty_signature inner -> walk env (prefix @ [ Ident.name id ]) inner each
         | _ -> ())
      | _ -> ()) signature

let qualified names = String.concat "." ("Solution" :: names)

type use = { path : string; place : int }

let uses : use list ref = ref []

let value_text path =
  let rec module_ = function
    | Path.Pident id -> Ident.name id
    | Pdot (path, name) -> module_ path ^ "." ^ name
    | Papply _ -> Describe.uncarried "a functor of the solution"
  in
  match path with
  | Path.Pdot (path, name) -> Printf.sprintf "%s.( %s )" (module_ path) name
  | _ -> Describe.uncarried "a value without a name"

(* Replaces each use of a value of the solution in the tests by a call to the solution's process. *)
let judged stdenv plan allow_shadows judge_use structure =
  let of_solution = Describe.of_solution in
  let standard_name env lid =
    ignore env;
    match lid with
    | Longident.Lident name -> standard_value stdenv name && not (List.mem name plan.values)
    | _ -> false
  in
  let physical env ty =
    match (Btype.repr ty).desc with
    | Tarrow (_, arg, _, _) ->
      let immediate = function
        | Carry.Int | Char | Bytes | Array _ | Buffer -> true
        | Sum (_, blocks) -> Array.for_all (fun b -> b.Carry.mutates) blocks
        | _ -> false
      in
      (match Hashtbl.find Describe.table (Describe.place env arg) with
       | desc when immediate desc -> ()
       | _ -> Describe.uncarried "physical equality of copied values")
    | _ -> ()
  in
  (* An alias of a module needs no value at run time. *)
  let alias m = match m.mod_desc, m.mod_type with Tmod_ident _, Mty_alias _ -> true | _ -> false in
  let expr it e =
    match e.exp_desc with
    | Texp_ident (path, lid, _) ->
      let path = Describe.value_path e.exp_env path in
      if of_solution path then begin
        if standard_name e.exp_env lid.txt && not allow_shadows then raise (Shadowed (Longident.last lid.txt));
        let place = Describe.place e.exp_env e.exp_type in
        let k = List.length !uses in
        uses := { path = value_text path; place } :: !uses;
        let constant = { e with exp_desc = Texp_constant (Const_int k); exp_type = Predef.type_int; exp_extra = [] } in
        { e with exp_desc = Texp_apply (judge_use, [ (Nolabel, Some constant) ]) }
      end
      else begin
        (match path with
         | Pdot (p, ("==" | "!=")) when Describe.is_unit "Stdlib" p -> physical e.exp_env e.exp_type
         | _ -> ());
        e
      end
    | Texp_letmodule (id, name, presence, m, body) when alias m ->
      { e with exp_desc = Texp_letmodule (id, name, presence, m, it.Tast_mapper.expr it body) }
    | Texp_new (path, _, _) when of_solution path -> Describe.uncarried "a class of the solution"
    | _ -> Tast_mapper.default.expr it e
  and binding_op it (b : binding_op) =
    if of_solution (Describe.value_path b.bop_exp.exp_env b.bop_op_path) then
      Describe.uncarried "an operator such as `let*` of the solution";
    Tast_mapper.default.binding_op it b
  and module_expr it m =
    match m.mod_desc with
    | Tmod_ident (path, _) when of_solution (Describe.module_path m.mod_env path) ->
      Describe.uncarried "a module of the solution as a value"
    | _ -> Tast_mapper.default.module_expr it m
  and module_binding it b = if alias b.mb_expr then b else Tast_mapper.default.module_binding it b
  and open_declaration it o =
    match o.open_expr.mod_desc with Tmod_ident _ -> o | _ -> Tast_mapper.default.open_declaration it o
  and class_expr it c =
    match c.cl_desc with
    | Tcl_ident (path, _, _) when of_solution path -> Describe.uncarried "a class of the solution"
    | _ -> Tast_mapper.default.class_expr it c
  in
  let it = { Tast_mapper.default with expr; binding_op; module_expr; module_binding; open_declaration; class_expr } in
  it.structure it structure

(* Returns the compiler's message if the tests are ill-typed for every solution, else None. Undefined names, and the
   names in `any`, are values of any type. *)
let fit_any any items =
  let any_value () =
    { Types.val_type = Btype.newgenvar (); val_kind = Val_reg; val_loc = Location.none; val_attributes = [];
      val_uid = Types.Uid.internal_not_actually_unique }
  in
  let add env name = Env.add_value (Ident.create_local name) (any_value ()) env in
  let rec go tries env =
    match Typemod.type_structure env items with
    | _ -> None
    | exception Env.Error (Lookup_error (_, _, Unbound_value (Lident name, _))) when tries > 0 ->
      go (tries - 1) (add env name)
    | exception Env.Error (Lookup_error _) -> None
    | exception Typecore.Error (_, _, (Wrong_name _ | Name_type_mismatch _)) -> None
    | exception e -> (match words_of e with Some (_, words) -> Some words | None -> raise e)
  in
  begin_unit "tests";
  Warnings.without_warnings (fun () -> go 200 (List.fold_left add (Compmisc.initial_env ()) any))

let judge_alias = parse "head.ml" "module Judge' = Judge\n"

type built = { structure : Typedtree.structure; count : int; guarantee : string }

(* Whether the tests use language features for objects or for modules as values. *)
let higher items =
  let found = ref false in
  let expr it e =
    (match e.pexp_desc with
     | Pexp_send _ | Pexp_new _ | Pexp_object _ | Pexp_pack _ | Pexp_letop _ | Pexp_letmodule _ -> found := true
     | _ -> ());
    Ast_iterator.default_iterator.expr it e
  and module_expr it m =
    (match m.pmod_desc with Pmod_apply _ | Pmod_unpack _ | Pmod_constraint _ -> found := true | _ -> ());
    Ast_iterator.default_iterator.module_expr it m
  and structure_item it i =
    (match i.pstr_desc with Pstr_class _ | Pstr_include _ -> found := true | _ -> ());
    Ast_iterator.default_iterator.structure_item it i
  in
  let it = { Ast_iterator.default_iterator with expr; module_expr; structure_item } in
  it.structure it items;
  !found

let opens items =
  let found = ref false in
  let open_declaration it o = found := true; Ast_iterator.default_iterator.open_declaration it o in
  let it = { Ast_iterator.default_iterator with open_declaration } in
  it.structure it items;
  !found

let cut_tests judge conditions (setup, tests) =
  let next = ref 0 in
  let helpers = helpers (setup @ List.concat tests) in
  let setup = List.map (noted_item judge) setup in
  let items = setup @ List.concat_map (test_items judge next conditions helpers) tests in
  (items, !next)

(* Returns why the tests are ill-typed for every solution, whether conditions without `assert` count as tests or not;
   None if they are well-typed for some. *)
let unfit_any any tests =
  let fit conditions = fit_any any (judge_alias @ fst (cut_tests "Judge'" conditions tests)) in
  match fit true with None -> None | Some words -> (match fit false with None -> None | Some _ -> Some words)

(* Types the tests, with calls in place of the solution's values. Tries ways with a strong guarantee first, then ways in
   which the solution can influence its tests more. *)
let tests_for text signature entry weak (setup, tests) =
  begin_unit "tests";
  let stdenv = Compmisc.initial_env () in
  let all = setup @ List.concat tests in
  let defined = List.filter_map (function
      | Types.Sig_value (id, _, _) | Sig_module (id, _, _, _, _) -> Some (Ident.name id)
      | _ -> None) signature
  in
  let plan = plan stdenv defined entry all in
  let ours = { solution = fresh text "S__"; judge = fresh text "J__"; stdlib = fresh text "L__" } in
  let collides = ref false in
  walk stdenv [] signature (fun _ -> function
      | Sig_value (id, _, _) when standard_value stdenv (Ident.name id) -> collides := true
      | Sig_module (id, _, _, _, _) when standard_module stdenv (Ident.name id) || Ident.name id = "Stdlib" ->
        collides := true
      | _ -> ());
  let _, _, bound, _, _ = names all in
  let attempt ~allow plan (conditions, one, any) =
    begin_unit "tests";
    Describe.any_is_none := any;
    uses := [];
    Describe.begin_table ();
    let env = Compmisc.initial_env () in
    let reopen = !collides && not allow in
    let items, count = cut_tests ours.judge conditions (setup, tests) in
    let items = renamed ours plan items in
    let items = if reopen then reopened ours plan.modules bound env items else items in
    let items = if one then single ours items else items in
    let items = head ours plan (!collides && not (allow && not (opens all))) @ items
                @ parse "tail.ml" (Printf.sprintf "let () = %s.finish ()" ours.judge) in
    let structure, _, _, _ = Typemod.type_structure env items in
    let path, vd = Env.find_value_by_name (Ldot (Lident "Judge", "use")) env in
    let use = { exp_desc = Texp_ident (path, Location.mknoloc (dotted "Judge.use"), vd); exp_loc = Location.none;
                exp_extra = []; exp_type = vd.val_type; exp_env = env; exp_attributes = [] } in
    (judged stdenv plan allow use structure, count)
  in
  let fits attempt = match attempt () with
    | structure, count -> Ok (structure, count)
    | exception Describe.Uncarried what -> Error (`Uncarried what)
    | exception Describe.Polymorphic -> Error (`Uncarried "a use of the solution at several types in one function")
    | exception Shadowed name -> Error (`Shadowed name)
    | exception e -> (match words_of e with Some (_, words) -> Error (`Unfit words) | None -> raise e)
  in
  let rec first errors = function
    | [] -> Error (List.rev errors)
    | attempt :: rest -> (match fits attempt with Ok found -> Ok found | Error e -> first (e :: errors) rest)
  in
  let ways = List.concat_map (fun (one, any) -> [ (true, one, any); (false, one, any) ])
      [ (false, false); (true, false); (false, true) ] in
  let attempts ~allow plan = first [] (List.map (fun way () -> attempt ~allow plan way) ways) in
  let with_values plan more = { plan with values = more @ plan.values } in
  match attempts ~allow:false plan with
  | Ok (_, _) when !uses = [] ->
    let _, _, _, called, _ = names all in
    if List.exists word called then raise (Status ("tests", "it defines nothing that the tests call"))
    else raise (Broken "the tests do not use the solution")
  | Ok (structure, count) ->
    if count = 0 then raise (Broken "no assertion is certain to be run");
    { structure; count; guarantee = "strong" }, plan
  | Error errors ->
    let pick f = List.find_map f errors in
    let unfit = Option.value (pick (function `Unfit words -> Some words | _ -> None)) ~default:"" in
    let unfit_any any = unfit_any any (setup, tests) in
    (match pick (function `Uncarried what -> Some what | _ -> None) with
     | Some (("an object" | "a module as a value" | "a class of the solution") as what) when not (higher all) ->
       raise (Status ("tests", "its type has " ^ what ^ ", which the tests do not expect"))
     | Some what -> raise (Status ("uncarried", what))
     | None ->
       let words = List.filter (fun name -> word name && List.mem name defined) (shared stdenv all) in
       let data = unfit_any [] in
       (* If the tests are ill-typed with the standard library's value of a name, for every solution, the name is the
          solution's. *)
       let meant = if data = None then [] else List.filter (fun name -> unfit_any [ name ] = None) words in
       let again = if meant = [] then Error [] else attempts ~allow:false (with_values plan meant) in
       let looser () =
         match if words = [] then Error [] else attempts ~allow:false (with_values plan words) with
         | Ok _ as found -> found
         | Error _ when !collides && (data <> None || opens all) -> attempts ~allow:true plan
         | Error _ as none -> none
       in
       (match again with
        | Ok (structure, count) -> { structure; count; guarantee = "strong" }, plan
        | Error _ ->
          (match looser () with
           | Ok (structure, count) when weak -> { structure; count; guarantee = "weak" }, plan
           | Ok _ ->
             raise (Status ("uncarried", "a name of the standard library that is the solution's here (name it in `entry_point`)"))
           | Error _ ->
             (match data with
              | Some words -> raise (Broken words)
              | None -> raise (Status ("tests", unfit))))))

(* The solution's exceptions whose arguments can be carried. *)
let exceptions env signature =
  let found = ref [] in
  walk env [] signature (fun prefix -> function
      | Sig_typext (id, _, Text_exception, _) ->
        let name = qualified (prefix @ [ Ident.name id ]) in
        (match Env.find_constructor_by_name (dotted name) env with
         | { cstr_tag = Cstr_extension _; cstr_inlined = None; cstr_args; _ } ->
           (match List.map (Describe.place env) cstr_args with
            | places -> found := (name, Array.of_list places) :: !found
            | exception (Describe.Uncarried _ | Describe.Polymorphic) -> ())
         | _ -> ()
         | exception Not_found -> ())
      | _ -> ());
  List.rev !found

(* The libraries besides the standard one that solutions and tests may use. An unused library is not linked. *)
let libraries () =
  List.filter (fun name -> match Load_path.find name with _ -> true | exception Not_found -> false)
    [ "unix.cma"; "str.cma" ]

let link objects program =
  Compmisc.init_path ();
  Bytelink.reset ();
  Symtable.reset ();
  Bytelink.link (libraries () @ objects) program

let build runtime count weak =
  let file name = Filename.concat runtime name in
  let text = read (file "solution.ml") in
  let rec tests k =
    let name = file ("test" ^ string_of_int k) in
    if Sys.file_exists name then read name :: tests (k + 1) else []
  in
  let entry = read (file "entry") in
  let setup, tests = parsed_tests (read (file "setup")) (tests 0) in
  let _, _, bound, _, _ = names (setup @ List.concat tests) in
  let tests =
    if Sys.file_exists (file "check") && List.mem "check" bound then
      tests @ [ parse "tests.ml" (Printf.sprintf "let () = check (%s)" entry) ]
    else tests
  in
  let use_runtime () = ours := [ runtime ] in
  let broken () =
    match unfit_any [] (setup, tests) with
    | None -> ()
    | Some words ->
      begin_unit "tests";
      let names = List.filter word (shared (Compmisc.initial_env ()) (setup @ List.concat tests)) in
      if List.for_all (fun name -> unfit_any [ name ] (setup, tests) <> None) names then raise (Broken words)
  in
  let signature =
    try solution text count
    with Status _ as status -> use_runtime (); broken (); raise status
  in
  use_runtime ();
  Warnings.without_warnings (fun () ->
      begin_unit "tests";
      let built, plan = tests_for text signature entry weak (setup, tests) in
      let env = Compmisc.initial_env () in
      let exceptions = exceptions env signature in
      translate "tests" built.structure Tcoerce_none;
      let uses = List.rev !uses in
      let array f list = "[|" ^ String.concat ";" (List.map f list) ^ "|]" in
      let job =
        { Carry.types = Describe.types ();
          values = Array.of_list (List.map (fun use -> use.place) uses);
          exceptions = Array.of_list (List.map snd exceptions);
          hidden = plan.leaves }
      in
      let job = Marshal.to_string job [] in
      let slots = array (fun (name, _) -> Printf.sprintf "Obj.repr [%%extension_constructor %s]" name) exceptions in
      let values = array (fun use -> Printf.sprintf "Obj.repr (%s)" use.path) uses in
      compile "answers" (Printf.sprintf "let () = Serve.serve %S %s %s" job values slots);
      compile "begins" (Printf.sprintf "let () = Judge.start %S %d %s" job built.count slots);
      begin_unit "solution";
      emit "solution-stand-in" Ident.Set.empty
        (Lprim (Psetglobal (Ident.create_persistent "Solution"), [ stand_in env signature ], Loc_unknown));
      let ours = List.map (fun name -> Filename.concat runtime (name ^ ".cmo")) in
      (* If the solution needs something that cannot be linked, that is a failure of the solution. *)
      (try link (ours [ "carry"; "serve" ] @ [ "solution.cmo"; "answers.cmo" ]) "program"
       with e -> (match words_of e with Some (_, words) -> raise (Status ("tests", words)) | None -> raise e));
      link (ours [ "carry"; "judge" ] @ [ "solution-stand-in.cmo"; "begins.cmo"; "tests.cmo" ]) "judge";
      (built.count, built.guarantee))

let () =
  let report status assertions words =
    let file name = if status = "strong" || status = "weak" then read name else "" in
    let program = file "program" and judge = file "judge" in
    set_binary_mode_out stdout true;
    Printf.printf "%s %d %d %d %d %d\n%s%s%s" status !warnings assertions (String.length words) (String.length program)
      (String.length judge) words program judge
  in
  Clflags.debug := false;
  Clflags.error_style := Some Misc.Error_style.Short;
  Compmisc.init_path ();
  match build Sys.argv.(1) (Sys.argv.(2) = "count") (Sys.argv.(3) = "weak") with
  | count, guarantee -> report guarantee count ""
  | exception Status (status, words) -> report status 0 words
  | exception Broken words -> report "broken" 0 words
  | exception (Stack_overflow | Out_of_memory) -> report "toobig" 0 "too much for the compiler"
  | exception e ->
    let words = match words_of e with Some (_, words) -> words | None -> Printexc.to_string e in
    report "failed" 0 words
