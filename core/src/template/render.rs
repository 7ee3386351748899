//! The evaluator: walks a template's syntax tree and prints into a [`TextBuf`].
//!
//! Scopes follow Jinja: the body of a `for` (each turn anew), of a `with`, a macro, a `call` and a filter
//! block have their own; `if` and `set` don't. A macro sees the names around its definition as they are when
//! it is called. Namespaces, macros, loops and helpers lie in tables of the evaluator and values hold their
//! numbers, so that no value can contain itself.

use super::args::Args;
use super::clock::CivilTime;
use super::error::{Error, failed};
use super::filters;
use super::limits::{self, Budget, limit};
use super::ops;
use super::predicates;
use super::provenance::{Text, TextBuf};
use super::python::to_text;
use super::syntax::{Arg, CmpOp, Expr, For, Macro, Name, Program, Stmt, StmtKind, Target};
use super::value::{ITEM_BYTES, Value};
use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

/// A scope's names. The chain of parents ends at the request's variables.
#[derive(Debug, Default)]
struct Scope {
    vars: RefCell<Vec<(Name, Value)>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    fn inside(parent: &Rc<Scope>) -> Rc<Scope> {
        Rc::new(Scope { vars: RefCell::default(), parent: Some(Rc::clone(parent)) })
    }

    fn set(&self, name: Name, value: Value) {
        let mut vars = self.vars.borrow_mut();
        match vars.iter_mut().find(|(n, _)| *n == name) {
            Some((_, slot)) => *slot = value,
            None => vars.push((name, value)),
        }
    }

    fn get(&self, name: Name) -> Option<Value> {
        let mut scope = Some(self);
        while let Some(here) = scope {
            if let Some((_, value)) = here.vars.borrow().iter().find(|(n, _)| *n == name) {
                return Some(value.clone());
            }
            scope = here.parent.as_deref();
        }
        None
    }
}

/// A macro and the names around its definition.
#[derive(Debug)]
struct MacroValue {
    decl: usize,
    scope: Rc<Scope>,
}

/// A loop in progress.
#[derive(Debug)]
struct LoopState {
    serial: u64,
    decl: usize,
    items: Rc<[Value]>,
    index: usize,
    /// Loops around it of the same recursive `for`.
    depth: usize,
    /// What `loop.changed` saw last.
    seen: Option<Vec<Value>>,
    scope: Rc<Scope>,
}

/// State of a `cycler` or `joiner`.
#[derive(Debug)]
enum Helper {
    Cycler { items: Vec<Value>, at: usize },
    Joiner { separator: Text, used: bool },
}

/// How a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

/// One rendering.
#[derive(Debug)]
pub(super) struct Renderer<'a> {
    program: &'a Program,
    now: CivilTime,
    budget: Budget,
    root: Rc<Scope>,
    namespaces: Vec<Vec<(Arc<str>, Value)>>,
    macros: Vec<MacroValue>,
    loops: Vec<LoopState>,
    helpers: Vec<Helper>,
    serial: u64,
    line: usize,
}

/// Functions that every template can call; variables of the request hide them.
const FUNCTIONS: [&str; 7] = ["cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now"];

impl<'a> Renderer<'a> {
    /// A rendering at the time `now`.
    pub(super) fn new(program: &'a Program, now: CivilTime) -> Self {
        Renderer {
            program,
            now,
            budget: Budget::new(),
            root: Rc::default(),
            namespaces: Vec::new(),
            macros: Vec::new(),
            loops: Vec::new(),
            helpers: Vec::new(),
            serial: 0,
            line: 0,
        }
    }

    /// What is left to spend; building the variables spends too.
    pub(super) fn budget(&mut self) -> &mut Budget {
        &mut self.budget
    }

    /// Defines a variable of the request; does nothing where the template doesn't mention it.
    pub(super) fn define(&mut self, name: &str, value: Value) {
        if let Some(id) = self.program.id(name) {
            self.root.set(id, value);
        }
    }

    /// Renders.
    pub(super) fn run(mut self) -> Result<TextBuf, Error> {
        let mut out = TextBuf::default();
        let scope = Scope::inside(&self.root);
        let program = self.program;
        match self.body(&program.body, &scope, &mut out) {
            Ok(_) => Ok(out),
            Err(error) => Err(error.at(self.line)),
        }
    }

    fn body(&mut self, stmts: &'a [Stmt], scope: &Rc<Scope>, out: &mut TextBuf) -> Result<Flow, Error> {
        self.budget.enter()?;
        for stmt in stmts {
            self.line = stmt.line;
            let flow = self.stmt(stmt, scope, out)?;
            if flow != Flow::On {
                self.budget.leave();
                return Ok(flow);
            }
        }
        self.budget.leave();
        Ok(Flow::On)
    }

    fn stmt(&mut self, stmt: &'a Stmt, scope: &Rc<Scope>, out: &mut TextBuf) -> Result<Flow, Error> {
        self.budget.step(1)?;
        match &stmt.kind {
            StmtKind::Raw(text) => self.print(text, out)?,
            StmtKind::Emit(expr) => {
                let value = self.eval(expr, scope)?;
                let text = to_text(&value, &mut self.budget)?;
                self.print(&text, out)?;
            }
            StmtKind::For(decl) => self.for_loop(*decl, scope, out)?,
            StmtKind::If(branches, otherwise) => {
                for (condition, body) in branches {
                    if self.eval(condition, scope)?.truth() {
                        return self.body(body, scope, out);
                    }
                }
                return self.body(otherwise, scope, out);
            }
            StmtKind::With(assignments, body) => {
                let inner = Scope::inside(scope);
                for (target, expr) in assignments {
                    let value = self.eval(expr, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::SetBlock(target, filter, body) => {
                let text = self.captured(body, &Scope::inside(scope))?;
                let value = match filter {
                    Some(filter) => self.filtered(filter, text, scope)?,
                    None => text,
                };
                self.assign(target, value, scope)?;
            }
            StmtKind::FilterBlock(filter, body) => {
                let text = self.captured(body, &Scope::inside(scope))?;
                let value = self.filtered(filter, text, scope)?;
                let text = to_text(&value, &mut self.budget)?;
                self.print(&text, out)?;
            }
            StmtKind::Block(body) => return self.body(body, scope, out),
            StmtKind::Macro(decl) => {
                let value = self.new_macro(*decl, scope)?;
                scope.set(self.program.macros[*decl].name, value);
            }
            StmtKind::CallBlock(call, decl) => {
                let caller = self.new_macro(*decl, scope)?;
                let Expr::Call(callee, args) = call else {
                    return failed("only a call can have a body");
                };
                let callee = self.eval(callee, scope)?;
                let mut args = self.args(args, scope)?;
                args.named.push((Arc::from("caller"), caller));
                let value = self.call(&callee, args)?;
                let text = to_text(&value, &mut self.budget)?;
                self.print(&text, out)?;
            }
            StmtKind::Do(call) => drop(self.eval(call, scope)?),
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    fn print(&mut self, text: &Text, out: &mut TextBuf) -> Result<(), Error> {
        self.budget.build(text.weight())?;
        if out.len() + text.len() > limits::MAX_OUTPUT {
            return Err(limit("the number of bytes printed", limits::MAX_OUTPUT as u64));
        }
        out.push(text);
        Ok(())
    }

    /// A body's output as a value. `break` and `continue` can't leave it: the parser keeps them in loops, and a
    /// loop's turn that they end inside such a body ends with it.
    fn captured(&mut self, body: &'a [Stmt], scope: &Rc<Scope>) -> Result<Value, Error> {
        let mut buf = TextBuf::default();
        self.body(body, scope, &mut buf)?;
        Ok(Value::Str(buf.finish()))
    }

    fn filtered(&mut self, filter: &'a Expr, input: Value, scope: &Rc<Scope>) -> Result<Value, Error> {
        let Expr::Filter(name, inner, args) = filter else {
            return failed("only filters can follow here");
        };
        let input = match inner {
            Some(inner) => self.filtered(inner, input, scope)?,
            None => input,
        };
        let args = self.args(args, scope)?;
        filters::apply(name, input, args, &mut self.budget)
    }

    fn new_macro(&mut self, decl: usize, scope: &Rc<Scope>) -> Result<Value, Error> {
        self.budget.build(2 * ITEM_BYTES)?;
        self.macros.push(MacroValue { decl, scope: Rc::clone(scope) });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    fn assign(&mut self, target: &Target, value: Value, scope: &Rc<Scope>) -> Result<(), Error> {
        self.budget.step(1)?;
        match target {
            Target::Name(name) => {
                self.budget.build(ITEM_BYTES)?;
                scope.set(*name, value);
            }
            Target::Attr(name, attr) => {
                let Some(Value::Namespace(id)) = scope.get(*name) else {
                    return failed(format!("only an attribute of a namespace can be set, not of '{}'", self.program.name(*name)));
                };
                self.set_in_namespace(id, attr, value)?;
            }
            Target::Tuple(targets) => {
                let values = value.items(&mut self.budget)?;
                if values.len() != targets.len() {
                    return failed(format!("{} values can't be unpacked into {} names", values.len(), targets.len()));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }

    fn set_in_namespace(&mut self, id: usize, attr: &Arc<str>, value: Value) -> Result<(), Error> {
        self.budget.build(ITEM_BYTES)?;
        let fields = &mut self.namespaces[id];
        match fields.iter_mut().find(|(name, _)| name == attr) {
            Some((_, slot)) => *slot = value,
            None => fields.push((Arc::clone(attr), value)),
        }
        Ok(())
    }

    fn for_loop(&mut self, decl: usize, scope: &Rc<Scope>, out: &mut TextBuf) -> Result<(), Error> {
        let program = self.program;
        let items = self.eval(&program.loops[decl].iter, scope)?;
        self.run_loop(decl, &items, 0, scope, out)
    }

    fn run_loop(&mut self, decl: usize, iterable: &Value, depth: usize, scope: &Rc<Scope>, out: &mut TextBuf) -> Result<(), Error> {
        let program = self.program;
        let For { target, condition, body, otherwise, .. } = &program.loops[decl];
        let mut items = iterable.items(&mut self.budget)?;
        if let Some(condition) = condition {
            let mut kept = Vec::new();
            for item in items {
                let inner = Scope::inside(scope);
                self.assign(target, item.clone(), &inner)?;
                if self.eval(condition, &inner)?.truth() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            self.body(otherwise, &Scope::inside(scope), out)?;
            return Ok(());
        }
        self.serial += 1;
        let value = Value::Loop(self.loops.len(), self.serial);
        let n = items.len();
        self.budget.build(n * ITEM_BYTES)?;
        self.loops.push(LoopState { serial: self.serial, decl, items: items.into(), index: 0, depth, seen: None, scope: Rc::clone(scope) });
        let loop_name = program.id("loop");
        for i in 0..n {
            let Some(state) = self.loops.last_mut() else {
                break;
            };
            state.index = i;
            let item = state.items[i].clone();
            let inner = Scope::inside(scope);
            if let Some(name) = loop_name {
                inner.set(name, value.clone());
            }
            self.assign(target, item, &inner)?;
            if self.body(body, &inner, out)? == Flow::Break {
                break;
            }
        }
        self.loops.pop();
        Ok(())
    }

    /// The state of a loop that is still running.
    fn loop_state(&self, at: usize, serial: u64) -> Result<&LoopState, Error> {
        match self.loops.get(at) {
            Some(state) if state.serial == serial => Ok(state),
            _ => failed("this loop is over"),
        }
    }

    fn loop_attribute(&self, at: usize, serial: u64, name: &str) -> Result<Value, Error> {
        let state = self.loop_state(at, serial)?;
        let (i, n) = (state.index, state.items.len());
        let int = |i: usize| Ok(Value::Int(i as i128));
        match name {
            "index" => int(i + 1),
            "index0" => int(i),
            "revindex" => int(n - i),
            "revindex0" => int(n - i - 1),
            "first" => Ok(Value::Bool(i == 0)),
            "last" => Ok(Value::Bool(i + 1 == n)),
            "length" => int(n),
            "depth" => int(state.depth + 1),
            "depth0" => int(state.depth),
            "previtem" => Ok(match i.checked_sub(1) {
                Some(i) => state.items[i].clone(),
                None => Value::undefined("the item before the first"),
            }),
            "nextitem" => Ok(state.items.get(i + 1).cloned().unwrap_or_else(|| Value::undefined("the item after the last"))),
            "cycle" => Ok(Value::LoopMethod(at, serial, "cycle")),
            "changed" => Ok(Value::LoopMethod(at, serial, "changed")),
            _ => Ok(Value::undefined(format!("'loop.{name}'"))),
        }
    }

    fn eval(&mut self, expr: &'a Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        self.budget.enter()?;
        let value = self.eval_inner(expr, scope)?;
        self.budget.leave();
        Ok(value)
    }

    fn eval_inner(&mut self, expr: &'a Expr, scope: &Rc<Scope>) -> Result<Value, Error> {
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(b) => Ok(Value::Bool(*b)),
            Expr::Int(i) => Ok(Value::Int(*i)),
            Expr::Float(f) => Ok(Value::Float(*f)),
            Expr::Str(text) => Ok(Value::Str(text.clone())),
            Expr::Var(name) => Ok(self.lookup(*name, scope)),
            Expr::List(items) => {
                let mut values = Vec::with_capacity(items.len());
                for item in items {
                    values.push(self.eval(item, scope)?);
                }
                Value::list(values, &mut self.budget)
            }
            Expr::Dict(entries) => {
                let mut values = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    values.push((self.eval(key, scope)?, self.eval(value, scope)?));
                }
                Value::dict(values, &mut self.budget)
            }
            Expr::Not(inner) => Ok(Value::Bool(!self.eval(inner, scope)?.truth())),
            Expr::Neg(inner) => ops::negate(&self.eval(inner, scope)?),
            Expr::And(pair) => {
                let left = self.eval(&pair.0, scope)?;
                if left.truth() { self.eval(&pair.1, scope) } else { Ok(left) }
            }
            Expr::Or(pair) => {
                let left = self.eval(&pair.0, scope)?;
                if left.truth() { Ok(left) } else { self.eval(&pair.1, scope) }
            }
            Expr::Bin(op, pair) => {
                let (left, right) = (self.eval(&pair.0, scope)?, self.eval(&pair.1, scope)?);
                ops::binary(*op, &left, &right, &mut self.budget)
            }
            Expr::Compare(first, rest) => self.compare(first, rest, scope),
            Expr::If(parts) => {
                let (condition, yes, no) = &**parts;
                match (self.eval(condition, scope)?.truth(), no) {
                    (true, _) => self.eval(yes, scope),
                    (false, Some(no)) => self.eval(no, scope),
                    (false, None) => Ok(Value::undefined("an if without else that doesn't hold")),
                }
            }
            Expr::Filter(name, input, args) => {
                let Some(input) = input else {
                    return failed(format!("the filter {name} has no input"));
                };
                let input = self.eval(input, scope)?;
                let args = self.args(args, scope)?;
                filters::apply(name, input, args, &mut self.budget)
            }
            Expr::Test(name, input, args) => {
                let input = self.eval(input, scope)?;
                let args = self.args(args, scope)?;
                predicates::holds(name, &input, args, &mut self.budget).map(Value::Bool)
            }
            Expr::Attr(of, name) => {
                let of = self.eval(of, scope)?;
                self.attribute(&of, name)
            }
            Expr::Item(pair) => {
                let (of, key) = (self.eval(&pair.0, scope)?, self.eval(&pair.1, scope)?);
                match (&of, &key) {
                    (Value::Namespace(_) | Value::Loop(..), Value::Str(name)) => self.attribute(&of, name.as_str()),
                    _ => ops::item(&of, &key, &mut self.budget),
                }
            }
            Expr::Slice(parts) => {
                let of = self.eval(&parts.0, scope)?;
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(&parts.1) {
                    *bound = part.as_ref().map(|part| self.eval(part, scope)).transpose()?;
                }
                ops::slice(&of, bounds, &mut self.budget)
            }
            Expr::Call(callee, args) => {
                let callee = self.eval(callee, scope)?;
                let args = self.args(args, scope)?;
                self.call(&callee, args)
            }
        }
    }

    fn lookup(&self, name: Name, scope: &Rc<Scope>) -> Value {
        if let Some(value) = scope.get(name) {
            return value;
        }
        let name = self.program.name(name);
        match FUNCTIONS.iter().find(|function| ***function == **name) {
            Some(function) => Value::Function(function),
            None => Value::undefined(format!("'{name}'")),
        }
    }

    fn attribute(&mut self, of: &Value, name: &str) -> Result<Value, Error> {
        match of {
            Value::Namespace(id) => {
                let found = self.namespaces[*id].iter().find(|(n, _)| **n == *name);
                Ok(found.map_or_else(|| Value::undefined(format!("'{name}' in a namespace")), |(_, value)| value.clone()))
            }
            Value::Loop(at, serial) => self.loop_attribute(*at, *serial, name),
            Value::Helper(id) => Ok(match (&self.helpers[*id], name) {
                (Helper::Cycler { items, at }, "current") => items[*at].clone(),
                (Helper::Cycler { .. }, "next") => of.clone(),
                _ => Value::undefined(format!("'{name}'")),
            }),
            Value::Macro(id) if name == "name" => {
                let decl = &self.program.macros[self.macros[*id].decl];
                Ok(Value::str(self.program.name(decl.name)))
            }
            _ => ops::attribute(of, name, &mut self.budget),
        }
    }

    fn compare(&mut self, first: &'a Expr, rest: &'a [(CmpOp, Expr)], scope: &Rc<Scope>) -> Result<Value, Error> {
        let mut left = self.eval(first, scope)?;
        for (op, right) in rest {
            let right = self.eval(right, scope)?;
            let budget = &mut self.budget;
            let holds = match op {
                CmpOp::Eq => left.equals(&right, budget)?,
                CmpOp::Ne => !left.equals(&right, budget)?,
                CmpOp::Lt => left.order(&right, budget)? == Some(Ordering::Less),
                CmpOp::Le => left.order(&right, budget)?.is_some_and(Ordering::is_le),
                CmpOp::Gt => left.order(&right, budget)? == Some(Ordering::Greater),
                CmpOp::Ge => left.order(&right, budget)?.is_some_and(Ordering::is_ge),
                CmpOp::In => right.contains(&left, budget)?,
                CmpOp::NotIn => !right.contains(&left, budget)?,
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn args(&mut self, args: &'a [Arg], scope: &Rc<Scope>) -> Result<Args, Error> {
        let mut out = Args::default();
        for arg in args {
            match arg {
                Arg::Pos(expr) => out.positional.push(self.eval(expr, scope)?),
                Arg::Named(name, expr) => out.named.push((Arc::clone(name), self.eval(expr, scope)?)),
                Arg::Splat(expr) => {
                    let items = self.eval(expr, scope)?.items(&mut self.budget)?;
                    out.positional.extend(items);
                }
                Arg::NamedSplat(expr) => match self.eval(expr, scope)? {
                    Value::Dict(dict) => {
                        self.budget.step(dict.entries().len())?;
                        self.budget.build(dict.entries().len() * 2 * ITEM_BYTES)?;
                        for (key, value) in dict.entries() {
                            let Value::Str(name) = key else {
                                return failed("keywords must be strings");
                            };
                            out.named.push((name.shared(), value.clone()));
                        }
                    }
                    other => return failed(format!("** needs a dict, not {}", other.type_name())),
                },
            }
        }
        Ok(out)
    }

    fn call(&mut self, callee: &Value, args: Args) -> Result<Value, Error> {
        self.budget.enter()?;
        let value = match callee {
            Value::Function(name) => self.call_function(name, args)?,
            Value::Method(of, method) => (method.call)(of, args, &mut self.budget)?,
            Value::Macro(id) => self.call_macro(*id, args)?,
            Value::Loop(at, serial) => self.recurse(*at, *serial, args)?,
            Value::LoopMethod(at, serial, "cycle") => {
                let state = self.loop_state(*at, *serial)?;
                match args.positional.len() {
                    0 => return failed("loop.cycle() needs an argument"),
                    n => args.positional[state.index % n].clone(),
                }
            }
            Value::LoopMethod(at, serial, _) => self.loop_changed(*at, *serial, args)?,
            Value::Helper(id) => self.call_helper(*id),
            other => {
                return failed(format!("'{}' object is not callable", other.defined()?.type_name()));
            }
        };
        self.budget.leave();
        Ok(value)
    }

    fn call_helper(&mut self, id: usize) -> Value {
        match &mut self.helpers[id] {
            Helper::Cycler { items, at } => {
                let value = items[*at].clone();
                *at = (*at + 1) % items.len();
                value
            }
            Helper::Joiner { separator, used } => {
                if std::mem::replace(used, true) {
                    Value::Str(separator.clone())
                } else {
                    Value::str("")
                }
            }
        }
    }

    fn loop_changed(&mut self, at: usize, serial: u64, args: Args) -> Result<Value, Error> {
        let seen = self.loop_state(at, serial)?.seen.clone();
        let mut same = seen.as_ref().is_some_and(|seen| seen.len() == args.positional.len());
        for (old, new) in seen.iter().flatten().zip(&args.positional) {
            same = same && old.equals(new, &mut self.budget)?;
        }
        self.loops[at].seen = Some(args.positional);
        Ok(Value::Bool(!same))
    }

    /// `loop(items)` inside a recursive `for`.
    fn recurse(&mut self, at: usize, serial: u64, args: Args) -> Result<Value, Error> {
        let state = self.loop_state(at, serial)?;
        let (decl, depth, scope) = (state.decl, state.depth, Rc::clone(&state.scope));
        if !self.program.loops[decl].recursive {
            return failed("the loop is called, but its for has no 'recursive'");
        }
        let mut params = args.params("loop");
        let items = params.required("iterable")?;
        params.end()?;
        let mut buf = TextBuf::default();
        let line = self.line;
        self.run_loop(decl, &items, depth + 1, &scope, &mut buf)?;
        self.line = line;
        Ok(Value::Str(buf.finish()))
    }

    fn call_macro(&mut self, id: usize, args: Args) -> Result<Value, Error> {
        let program = self.program;
        let decl = &program.macros[self.macros[id].decl];
        let scope = Scope::inside(&self.macros[id].scope);
        self.bind(decl, args, &scope)?;
        let line = self.line;
        let value = self.captured(&decl.body, &scope)?;
        self.line = line;
        Ok(value)
    }

    fn bind(&mut self, decl: &'a Macro, args: Args, scope: &Rc<Scope>) -> Result<(), Error> {
        let name = self.program.name(decl.name);
        let Args { positional, mut named } = args;
        let n_given = positional.len();
        let mut positional = positional.into_iter();
        for (i, param) in decl.params.iter().enumerate() {
            let param_name = self.program.name(*param);
            let by_name = named.iter().position(|(n, _)| n == param_name);
            let value = match (positional.next(), by_name) {
                (Some(_), Some(_)) => {
                    return failed(format!("{name}() was given '{param_name}' twice"));
                }
                (Some(value), None) => value,
                (None, Some(at)) => named.remove(at).1,
                (None, None) => {
                    let first_default = decl.params.len() - decl.defaults.len();
                    match i.checked_sub(first_default) {
                        Some(at) => self.eval(&decl.defaults[at], scope)?,
                        None => Value::undefined(format!("parameter '{param_name}'")),
                    }
                }
            };
            scope.set(*param, value);
        }
        if let Some(at) = named.iter().position(|(n, _)| &**n == "caller") {
            let caller = named.remove(at).1;
            if let Some(id) = self.program.id("caller") {
                scope.set(id, caller);
            }
        }
        let extra: Vec<Value> = positional.collect();
        match self.program.id("varargs") {
            Some(id) => scope.set(id, Value::list(extra, &mut self.budget)?),
            None if !extra.is_empty() => {
                return failed(format!("{name}() takes {} arguments, {n_given} were given", decl.params.len()));
            }
            None => {}
        }
        match (self.program.id("kwargs"), named.first()) {
            (Some(id), _) => {
                let entries = named.iter().map(|(name, value)| (Value::str(name), value.clone())).collect();
                scope.set(id, Value::dict(entries, &mut self.budget)?);
            }
            (None, Some((extra, _))) => {
                return failed(format!("{name}() has no parameter '{extra}'"));
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn call_function(&mut self, name: &'static str, mut args: Args) -> Result<Value, Error> {
        match name {
            "raise_exception" => {
                let mut params = args.params(name);
                let message = to_text(&params.required("message")?, &mut self.budget)?;
                // What a template says is shown to people: a bound keeps it readable.
                let message = message.as_str().chars().take(2000).collect();
                Err(Error::Raised { message, line: self.line })
            }
            "strftime_now" => {
                let mut params = args.params(name);
                let format = params.required_text("format")?;
                params.end()?;
                self.budget.build(format.len().saturating_mul(32))?;
                let time = self.now.strftime(format.as_str());
                // The clock has no text of its own: the result is as trustworthy as its format.
                Ok(Value::Str(if format.is_trusted() { Text::trusted(&time) } else { Text::untrusted(&time) }))
            }
            "range" => {
                let mut params = args.params(name);
                let first = params.int("start")?;
                let (start, stop) = match (first, params.int("stop")?) {
                    (Some(stop), None) => (0, stop),
                    (Some(start), Some(stop)) => (start, stop),
                    (None, _) => return failed("range() needs a whole number"),
                };
                let step = params.int("step")?.unwrap_or(1);
                params.end()?;
                self.range(start, stop, step)
            }
            "namespace" => {
                let mut fields: Vec<(Arc<str>, Value)> = Vec::new();
                for value in std::mem::take(&mut args.positional) {
                    let Value::Dict(dict) = &value else {
                        return failed("namespace() takes a dict");
                    };
                    for (key, value) in dict.entries() {
                        let Value::Str(key) = key else {
                            return failed("a namespace's names are strings");
                        };
                        fields.push((key.shared(), value.clone()));
                    }
                }
                fields.extend(args.named);
                self.budget.build((fields.len() + 1) * 2 * ITEM_BYTES)?;
                self.namespaces.push(Vec::new());
                let id = self.namespaces.len() - 1;
                for (name, value) in fields {
                    self.set_in_namespace(id, &name, value)?;
                }
                Ok(Value::Namespace(id))
            }
            "dict" => {
                let mut entries = Vec::new();
                for value in &args.positional {
                    match value {
                        Value::Dict(dict) => entries.extend(dict.entries().iter().cloned()),
                        pairs => {
                            for pair in pairs.items(&mut self.budget)? {
                                match pair.items(&mut self.budget)?.as_slice() {
                                    [key, value] => entries.push((key.clone(), value.clone())),
                                    _ => return failed("dict() takes a dict or pairs"),
                                }
                            }
                        }
                    }
                }
                entries.extend(args.named.into_iter().map(|(name, value)| (Value::str(&name), value)));
                Value::dict(entries, &mut self.budget)
            }
            "cycler" => match args.positional.is_empty() {
                true => failed("cycler() needs an item"),
                false => self.helper(Helper::Cycler { items: args.positional, at: 0 }),
            },
            _ => {
                let mut params = args.params(name);
                let separator = params.text("sep")?.unwrap_or_else(|| Text::trusted(", "));
                params.end()?;
                self.helper(Helper::Joiner { separator, used: false })
            }
        }
    }

    fn helper(&mut self, helper: Helper) -> Result<Value, Error> {
        self.budget.build(4 * ITEM_BYTES)?;
        self.helpers.push(helper);
        Ok(Value::Helper(self.helpers.len() - 1))
    }

    fn range(&mut self, start: i128, stop: i128, step: i128) -> Result<Value, Error> {
        if step == 0 {
            return failed("range() needs a step that is not zero");
        }
        let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
        let n = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
        if n > limits::MAX_RANGE {
            return Err(limit("the number of items of a range", limits::MAX_RANGE as u64));
        }
        self.budget.step(n as usize)?;
        Value::list((0..n).map(|i| Value::Int(start + i * step)).collect(), &mut self.budget)
    }
}
