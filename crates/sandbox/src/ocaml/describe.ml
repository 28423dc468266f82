(* Converts the types that the compiler has inferred to the table of types by which values are carried (`carry.ml`). *)
open Types

exception Uncarried of string
exception Polymorphic

(* Whether a value that is used at any type has type `Nothing`, which no value has. *)
let any_is_none = ref false

let uncarried format = Printf.ksprintf (fun what -> raise (Uncarried what)) format
let table : (int, Carry.desc) Hashtbl.t = Hashtbl.create 64
let places : (string, int) Hashtbl.t = Hashtbl.create 64

let begin_table () =
  Hashtbl.reset table;
  Hashtbl.reset places;
  Array.iteri (Hashtbl.replace table) Carry.first_types;
  List.iter2 (Hashtbl.replace places) [ "string"; "first exceptions"; "int" ] [ 0; 1; 2 ]

let rec root = function Path.Pident id -> id | Pdot (path, _) -> root path | Papply (path, _) -> root path
let is_unit name path = Ident.persistent (root path) && Ident.name (root path) = name
let of_solution = is_unit "Solution"

let module_path env path = try Env.normalize_module_path None env path with _ -> path
let type_path env path = try Env.normalize_type_path None env path with _ -> path

let value_path env = function Path.Pdot (path, name) -> Path.Pdot (module_path env path, name) | path -> path

let rec unique = function
  | Path.Pident id -> Ident.unique_name id
  | Pdot (path, name) -> unique path ^ "." ^ name
  | Papply (f, x) -> unique f ^ "(" ^ unique x ^ ")"

let builtin path = List.exists (Path.same path)
    Predef.[ path_int; path_char; path_string; path_bytes; path_float; path_int32; path_int64; path_nativeint;
             path_array; path_lazy_t; path_exn; path_floatarray; path_extension_constructor ]

let declaration env path = try Some (Env.find_type path env) with Not_found -> None

let apply env params body args =
  try Ctype.apply env params body args with Ctype.Cannot_apply -> uncarried "a type that cannot be expanded"

(* Expands a type: replaces abbreviations (also private ones) and unboxed types by their definitions. *)
let rec expand steps env ty =
  if steps > 100 then uncarried "an endless abbreviation";
  let ty = Btype.repr ty in
  match ty.desc with
  | Tpoly (body, []) -> expand (steps + 1) env body
  | Tconstr (path, args, _) when not (builtin path) ->
    (match declaration env path with
     | Some { type_manifest = Some body; type_params; _ } -> expand (steps + 1) env (apply env type_params body args)
     | Some { type_kind = Type_record ([ l ], Record_unboxed _); type_params; _ } ->
       expand (steps + 1) env (apply env type_params l.ld_type args)
     | Some { type_kind = Type_variant ([ { cd_args = Cstr_tuple [ arg ]; cd_res = None; _ } ], Variant_unboxed);
              type_params; _ } -> expand (steps + 1) env (apply env type_params arg args)
     | Some { type_kind = Type_variant ([ { cd_args = Cstr_record [ l ]; cd_res = None; _ } ], Variant_unboxed);
              type_params; _ } -> expand (steps + 1) env (apply env type_params l.ld_type args)
     | Some { type_kind = Type_variant (_, Variant_unboxed); _ } -> uncarried "an unboxed type of unknown content"
     | _ -> ty)
  | _ -> ty

let rec key env ty =
  let ty = expand 0 env ty in
  match ty.desc with
  | Tvar _ when ty.level = Btype.generic_level -> if !any_is_none then "nothing" else raise Polymorphic
  | Tvar _ -> "_"
  | Tarrow (_, from, into, _) -> Printf.sprintf "(%s>%s)" (key env from) (key env into)
  | Ttuple parts -> "(" ^ String.concat "*" (List.map (key env) parts) ^ ")"
  | Tconstr (path, args, _) ->
    let name = if builtin path then Path.name path else unique (type_path env path) in
    name ^ if args = [] then "" else "(" ^ String.concat "," (List.map (key env) args) ^ ")"
  | Tvariant _ -> "variant" ^ string_of_int ty.id
  | Tobject _ -> uncarried "an object"
  | Tpackage _ -> uncarried "a module as a value"
  | Tunivar _ | Tpoly _ -> uncarried "a polymorphic field or argument"
  | _ -> uncarried "a type of unknown form"

let block ?(mutates = false) ?(received = true) fields = Carry.{ fields = Array.of_list fields; mutates; received }

let rec place env ty =
  let ty = expand 0 env ty in
  let name = key env ty in
  match Hashtbl.find_opt places name with
  | Some place -> place
  | None ->
    let place = Hashtbl.length table in
    if place > 400 then uncarried "a type with endless instances";
    Hashtbl.replace places name place;
    Hashtbl.replace table place Carry.Opaque;
    Hashtbl.replace table place (describe env ty);
    place

and describe env ty : Carry.desc =
  match ty.desc with
  | Tarrow (_, from, into, _) ->
    let from = place env from in
    Arrow (from, place env into)
  | Ttuple parts -> Sum (0, [| block (List.map (place env) parts) |])
  | Tvariant row -> Tags (Array.of_list (tags env (Btype.row_repr row)))
  | Tconstr (path, args, _) -> constructed env ty path args
  | Tvar _ when ty.level = Btype.generic_level -> Nothing
  | _ -> Opaque

and tags env row =
  let tag (name, field) =
    let hash = Btype.hash_variant name in
    match Btype.row_field_repr field with
    | Rpresent None | Reither (true, [], _, _) -> Some (hash, -1)
    | Rpresent (Some arg) | Reither (_, arg :: _, _, _) -> Some (hash, place env arg)
    | _ -> None
  in
  List.filter_map tag row.row_fields

and constructed env ty path args : Carry.desc =
  let is own = Path.same path own in
  let own = Hashtbl.find places (key env ty) in
  let cell = block in
  match type_path env path, List.map (fun arg -> arg) args with
  | _ when is Predef.path_int -> Int
  | _ when is Predef.path_char -> Char
  | _ when is Predef.path_string -> String
  | _ when is Predef.path_bytes -> Bytes
  | _ when is Predef.path_float -> Float
  | _ when is Predef.path_int32 -> Int32
  | _ when is Predef.path_int64 -> Int64
  | _ when is Predef.path_nativeint -> Nativeint
  | _ when is Predef.path_exn -> Exn
  | _, [ arg ] when is Predef.path_array -> Array (place env arg)
  | _, [ arg ] when is Predef.path_lazy_t -> Lazy (place env arg)
  | path, args ->
    let standard name = is_unit ("Stdlib__" ^ name) path in
    let functor_argument name =
      match path with
      | Pdot (Papply (Pdot (Pident unit, "Make"), x), "t") when Ident.persistent unit && Ident.name unit = "Stdlib__" ^ name
        -> Some x
      | _ -> None
    in
    let element x = place env (Btype.newgenty (Tconstr (Pdot (x, "t"), [], ref Mnil))) in
    (match Path.last path, args, functor_argument "Set", functor_argument "Map", functor_argument "Hashtbl" with
     | "t", [], Some x, _, _ -> Sum (1, [| cell [ own; element x; own; 2 ] |])
     | "t", [ v ], _, Some x, _ ->
       let k = element x in
       Sum (1, [| cell [ own; k; place env v; own; 2 ] |])
     | "t", [ v ], _, _, Some x -> let k = element x in table_of own k (place env v)
     | "t", [ k; v ], _, _, _ when standard "Hashtbl" && not_applied path ->
       let k = place env k in
       table_of own k (place env v)
     | "t", [ v ], _, _, _ when standard "Queue" ->
       let v = place env v in
       let cells = extra own "cells" (fun cells -> Carry.Sum (1, [| cell ~mutates:true [ v; cells ] |])) in
       Sum (0, [| cell ~mutates:true [ 2; cells; cells ] |])
     | "t", [ v ], _, _, _ when standard "Stack" ->
       let v = place env v in
       let items = extra own "items" (fun items -> Carry.Sum (1, [| cell [ v; items ] |])) in
       Sum (0, [| cell ~mutates:true [ items; 2 ] |])
     | "t", [], _, _, _ when standard "Buffer" -> Buffer
     | "t", [], _, _, _ when standard "Uchar" -> Int
     | _ -> declared env ty path args)

and not_applied = function Path.Pdot (Pident _, _) -> true | _ -> false

and extra own name desc =
  let place = Hashtbl.length table in
  Hashtbl.replace places (Printf.sprintf "%s of %d" name own) place;
  Hashtbl.replace table place Carry.Opaque;
  Hashtbl.replace table place (desc place);
  place

(* A hash table, with the fields that it has in the standard library: {size; data; seed; initial_size}. *)
and table_of own k v =
  let cell = block in
  let chain = extra own "chain" (fun chain -> Carry.Sum (1, [| cell ~mutates:true [ k; v; chain ] |])) in
  let data = extra own "data" (fun _ -> Carry.Array chain) in
  Sum (0, [| cell ~mutates:true [ 2; data; 2; 2 ] |])

and declared env ty path args =
  let mutates labels = List.exists (fun l -> l.ld_mutable = Asttypes.Mutable) labels in
  match declaration env path with
  | Some { type_kind = Type_record (labels, repr); type_params; _ } ->
    (match repr with
     | Record_float -> Floats (List.length labels, mutates labels)
     | _ -> Sum (0, [| fields env type_params args labels |]))
  | Some { type_kind = Type_variant (constructors, _); type_params; _ } ->
    let constant c = c.cd_args = Cstr_tuple [] in
    let blocks = List.filter (fun c -> not (constant c)) constructors in
    let blocks = List.map (constructor env ty type_params args) blocks in
    Sum (List.length constructors - List.length blocks, Array.of_list blocks)
  | Some { type_kind = Type_abstract; _ } when of_solution path -> Opaque
  | _ -> uncarried "a value of type %s" (Path.name path)

and fields env params args labels =
  let mutates = List.exists (fun l -> l.ld_mutable = Asttypes.Mutable) labels in
  block ~mutates (List.map (fun l -> place env (apply env params l.ld_type args)) labels)

and constructor env ty params args c =
  match c.cd_res, c.cd_args with
  | None, Cstr_tuple parts -> block (List.map (fun part -> place env (apply env params part args)) parts)
  | None, Cstr_record labels -> fields env params args labels
  | Some result, cd_args ->
    (* A constructor of a GADT: its arguments have the types of this instance. If one of them is existential, the
       constructor is not accepted from the solution. *)
    let parts, mutates =
      match cd_args with
      | Cstr_tuple parts -> (parts, false)
      | Cstr_record labels ->
        (List.map (fun l -> l.ld_type) labels, List.exists (fun l -> l.ld_mutable = Asttypes.Mutable) labels)
    in
    let instance = Ctype.instance_list (result :: parts) in
    (* Unifying with a type that has no free variables does not change that type. *)
    let known = Ctype.free_variables ty = [] in
    let possible = not known || (try Ctype.unify env (List.hd instance) ty; true with Ctype.Unify _ -> false) in
    let parts = List.tl instance in
    let closed = known && List.for_all (fun part -> Ctype.free_variables part = []) parts in
    if possible then block ~mutates ~received:closed (List.map (place env) parts)
    else block ~received:false (List.map (fun _ -> 2) parts)

let types () = Array.init (Hashtbl.length table) (Hashtbl.find table)
