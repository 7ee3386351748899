//! The syntax tree of a template in our own terms, and the one place that touches the parser's.
//!
//! Names are numbers, `elif` chains are flat, loops and macros lie in tables, literals are trusted [`Text`].

use super::error::Error;
use super::provenance::Text;
use super::source;
use minijinja::Value as Literal;
use minijinja::machinery::{ast, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use std::collections::HashMap;
use std::sync::Arc;

/// A name that the template uses: an index into [`Program::names`].
pub(super) type Name = u32;

/// A parsed template.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) body: Vec<Stmt>,
    pub(super) names: Vec<Arc<str>>,
    pub(super) loops: Vec<For>,
    pub(super) macros: Vec<Macro>,
    ids: HashMap<Arc<str>, Name>,
}

/// A statement and the line it starts in.
#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: usize,
    pub(super) kind: StmtKind,
}

/// What a statement does.
#[derive(Debug)]
pub(super) enum StmtKind {
    Raw(Text),
    Emit(Expr),
    /// Index into [`Program::loops`].
    For(usize),
    /// Branches `(condition, body)` in order, then the `else`.
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    Set(Target, Expr),
    /// The body's text, through the filters if there are some.
    SetBlock(Target, Option<Expr>, Vec<Stmt>),
    FilterBlock(Expr, Vec<Stmt>),
    /// Body of an `autoescape`, which changes nothing: nothing is escaped here.
    Block(Vec<Stmt>),
    /// Index into [`Program::macros`].
    Macro(usize),
    /// A call with the macro that is its `caller`.
    CallBlock(Expr, usize),
    Do(Expr),
    Break,
    Continue,
}

/// A `for` statement.
#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iter: Expr,
    pub(super) condition: Option<Expr>,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
    pub(super) recursive: bool,
}

/// A macro; the last parameters are those with defaults.
#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Name,
    pub(super) params: Vec<Name>,
    pub(super) defaults: Vec<Expr>,
    pub(super) body: Vec<Stmt>,
}

/// What can be assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(Name),
    /// An attribute of a namespace held by a name.
    Attr(Name, Arc<str>),
    Tuple(Vec<Target>),
}

/// Operators on two values, both evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
    Concat,
}

/// Comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CmpOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// An expression.
#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    Var(Name),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    Bin(BinOp, Box<(Expr, Expr)>),
    Compare(Box<Expr>, Vec<(CmpOp, Expr)>),
    /// Condition, value if it holds, value if not.
    If(Box<(Expr, Expr, Option<Expr>)>),
    /// Filters of a block have no input of their own.
    Filter(Arc<str>, Option<Box<Expr>>, Vec<Arg>),
    Test(Arc<str>, Box<Expr>, Vec<Arg>),
    Attr(Box<Expr>, Arc<str>),
    Item(Box<(Expr, Expr)>),
    /// Of a value: start, stop, step.
    Slice(Box<(Expr, [Option<Expr>; 3])>),
    Call(Box<Expr>, Vec<Arg>),
}

/// An argument of a call.
#[derive(Debug)]
pub(super) enum Arg {
    Pos(Expr),
    Named(Arc<str>, Expr),
    Splat(Expr),
    NamedSplat(Expr),
}

impl Program {
    /// Parses a template.
    ///
    /// # Errors
    /// [`Error::Syntax`], [`Error::Limit`].
    pub(super) fn parse(template: &str) -> Result<Self, Error> {
        let prepared = source::prepare(template)?;
        let tree = parse(&prepared, "template", SyntaxConfig, source::whitespace()).map_err(|error| source::syntax(&error))?;
        let ast::Stmt::Template(root) = &tree else {
            return Err(Error::Syntax { line: 0, message: "no template".to_owned() });
        };
        let mut program = Program { body: Vec::new(), names: Vec::new(), loops: Vec::new(), macros: Vec::new(), ids: HashMap::new() };
        program.body = program.block(&root.children)?;
        Ok(program)
    }

    /// The number of `name`, if the template mentions it.
    pub(super) fn id(&self, name: &str) -> Option<Name> {
        self.ids.get(name).copied()
    }

    /// The text of a name.
    pub(super) fn name(&self, name: Name) -> &Arc<str> {
        &self.names[name as usize]
    }

    fn intern(&mut self, name: &str) -> Name {
        if let Some(id) = self.id(name) {
            return id;
        }
        let id = self.names.len() as Name;
        let text: Arc<str> = Arc::from(name);
        self.names.push(Arc::clone(&text));
        self.ids.insert(text, id);
        id
    }

    fn block(&mut self, stmts: &[ast::Stmt<'_>]) -> Result<Vec<Stmt>, Error> {
        stmts.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    fn stmt(&mut self, stmt: &ast::Stmt<'_>) -> Result<Stmt, Error> {
        let (line, kind) = match stmt {
            ast::Stmt::Template(s) => (s.span(), StmtKind::Block(self.block(&s.children)?)),
            ast::Stmt::EmitRaw(s) => (s.span(), StmtKind::Raw(Text::trusted(s.raw))),
            ast::Stmt::EmitExpr(s) => (s.span(), StmtKind::Emit(self.expr(&s.expr)?)),
            ast::Stmt::ForLoop(s) => (s.span(), self.for_loop(s)?),
            ast::Stmt::IfCond(s) => (s.span(), self.if_cond(s)?),
            ast::Stmt::WithBlock(s) => {
                let assignments = s
                    .assignments
                    .iter()
                    .map(|(target, value)| Ok((self.target(target)?, self.expr(value)?)))
                    .collect::<Result<_, Error>>()?;
                (s.span(), StmtKind::With(assignments, self.block(&s.body)?))
            }
            ast::Stmt::Set(s) => (s.span(), StmtKind::Set(self.target(&s.target)?, self.expr(&s.expr)?)),
            ast::Stmt::SetBlock(s) => {
                let filter = s.filter.as_ref().map(|filter| self.expr(filter)).transpose()?;
                (s.span(), StmtKind::SetBlock(self.target(&s.target)?, filter, self.block(&s.body)?))
            }
            ast::Stmt::AutoEscape(s) => (s.span(), StmtKind::Block(self.block(&s.body)?)),
            ast::Stmt::FilterBlock(s) => (s.span(), StmtKind::FilterBlock(self.expr(&s.filter)?, self.block(&s.body)?)),
            ast::Stmt::Macro(s) => (s.span(), StmtKind::Macro(self.macro_decl(s)?)),
            ast::Stmt::CallBlock(s) => {
                let call = self.call(&s.call)?;
                (s.span(), StmtKind::CallBlock(call, self.macro_decl(&s.macro_decl)?))
            }
            ast::Stmt::Do(s) => (s.span(), StmtKind::Do(self.call(&s.call)?)),
            ast::Stmt::Continue(s) => (s.span(), StmtKind::Continue),
            ast::Stmt::Break(s) => (s.span(), StmtKind::Break),
        };
        Ok(Stmt { line: usize::from(line.start_line), kind })
    }

    fn for_loop(&mut self, s: &ast::ForLoop<'_>) -> Result<StmtKind, Error> {
        let lowered = For {
            target: self.target(&s.target)?,
            iter: self.expr(&s.iter)?,
            condition: s.filter_expr.as_ref().map(|condition| self.expr(condition)).transpose()?,
            body: self.block(&s.body)?,
            otherwise: self.block(&s.else_body)?,
            recursive: s.recursive,
        };
        self.loops.push(lowered);
        Ok(StmtKind::For(self.loops.len() - 1))
    }

    fn if_cond(&mut self, s: &ast::IfCond<'_>) -> Result<StmtKind, Error> {
        let mut branches = vec![(self.expr(&s.expr)?, self.block(&s.true_body)?)];
        let mut rest = &s.false_body;
        while let [ast::Stmt::IfCond(next)] = rest.as_slice() {
            branches.push((self.expr(&next.expr)?, self.block(&next.true_body)?));
            rest = &next.false_body;
        }
        Ok(StmtKind::If(branches, self.block(rest)?))
    }

    fn macro_decl(&mut self, s: &ast::Macro<'_>) -> Result<usize, Error> {
        let params = s
            .args
            .iter()
            .map(|arg| match arg {
                ast::Expr::Var(var) => Ok(self.intern(var.id)),
                other => Err(at(other, "a macro's parameter must be a name")),
            })
            .collect::<Result<_, _>>()?;
        let defaults = s.defaults.iter().map(|default| self.expr(default)).collect::<Result<_, _>>()?;
        let lowered = Macro { name: self.intern(s.name), params, defaults, body: self.block(&s.body)? };
        self.macros.push(lowered);
        Ok(self.macros.len() - 1)
    }

    fn target(&mut self, target: &ast::Expr<'_>) -> Result<Target, Error> {
        match target {
            ast::Expr::Var(var) => Ok(Target::Name(self.intern(var.id))),
            ast::Expr::GetAttr(attr) => match &attr.expr {
                ast::Expr::Var(var) => Ok(Target::Attr(self.intern(var.id), Arc::from(attr.name))),
                other => Err(at(other, "only an attribute of a namespace can be set")),
            },
            ast::Expr::List(list) => Ok(Target::Tuple(list.items.iter().map(|item| self.target(item)).collect::<Result<_, _>>()?)),
            other => Err(at(other, "this can't be assigned to")),
        }
    }

    fn pair(&mut self, a: &ast::Expr<'_>, b: &ast::Expr<'_>) -> Result<Box<(Expr, Expr)>, Error> {
        Ok(Box::new((self.expr(a)?, self.expr(b)?)))
    }

    fn expr(&mut self, expr: &ast::Expr<'_>) -> Result<Expr, Error> {
        Ok(match expr {
            ast::Expr::Var(e) => Expr::Var(self.intern(e.id)),
            ast::Expr::Const(e) => literal(&e.value).ok_or_else(|| at(expr, "this literal isn't supported"))?,
            ast::Expr::List(e) => Expr::List(e.items.iter().map(|item| self.expr(item)).collect::<Result<_, _>>()?),
            ast::Expr::Map(e) => Expr::Dict(
                e.keys.iter().zip(&e.values).map(|(key, value)| Ok((self.expr(key)?, self.expr(value)?))).collect::<Result<_, Error>>()?,
            ),
            ast::Expr::UnaryOp(e) => {
                let inner = Box::new(self.expr(&e.expr)?);
                match e.op {
                    ast::UnaryOpKind::Not => Expr::Not(inner),
                    ast::UnaryOpKind::Neg => Expr::Neg(inner),
                }
            }
            ast::Expr::BinOp(e) => self.bin_op(e)?,
            ast::Expr::Compare(e) => {
                let first = Box::new(self.expr(&e.expr)?);
                let ops = e.ops.iter().map(|op| Ok((compare_op(op.op), self.expr(&op.expr)?))).collect::<Result<_, Error>>()?;
                Expr::Compare(first, ops)
            }
            ast::Expr::IfExpr(e) => Expr::If(Box::new((
                self.expr(&e.test_expr)?,
                self.expr(&e.true_expr)?,
                e.false_expr.as_ref().map(|value| self.expr(value)).transpose()?,
            ))),
            ast::Expr::Filter(e) => {
                let input = e.expr.as_ref().map(|input| self.expr(input)).transpose()?.map(Box::new);
                Expr::Filter(Arc::from(e.name), input, self.args(&e.args)?)
            }
            ast::Expr::Test(e) => Expr::Test(Arc::from(e.name), Box::new(self.expr(&e.expr)?), self.args(&e.args)?),
            ast::Expr::GetAttr(e) => Expr::Attr(Box::new(self.expr(&e.expr)?), Arc::from(e.name)),
            ast::Expr::GetItem(e) => Expr::Item(self.pair(&e.expr, &e.subscript_expr)?),
            ast::Expr::Slice(e) => {
                let mut part = |part: &Option<ast::Expr<'_>>| part.as_ref().map(|e| self.expr(e)).transpose();
                let parts = [part(&e.start)?, part(&e.stop)?, part(&e.step)?];
                Expr::Slice(Box::new((self.expr(&e.expr)?, parts)))
            }
            ast::Expr::Call(e) => self.call(e)?,
        })
    }

    fn call(&mut self, call: &ast::Call<'_>) -> Result<Expr, Error> {
        Ok(Expr::Call(Box::new(self.expr(&call.expr)?), self.args(&call.args)?))
    }

    fn args(&mut self, args: &[ast::CallArg<'_>]) -> Result<Vec<Arg>, Error> {
        args.iter()
            .map(|arg| {
                Ok(match arg {
                    ast::CallArg::Pos(e) => Arg::Pos(self.expr(e)?),
                    ast::CallArg::Kwarg(name, e) => Arg::Named(Arc::from(*name), self.expr(e)?),
                    ast::CallArg::PosSplat(e) => Arg::Splat(self.expr(e)?),
                    ast::CallArg::KwargSplat(e) => Arg::NamedSplat(self.expr(e)?),
                })
            })
            .collect()
    }

    fn bin_op(&mut self, e: &ast::BinOp<'_>) -> Result<Expr, Error> {
        use ast::BinOpKind as K;
        let compared = match e.op {
            K::Eq => CmpOp::Eq,
            K::Ne => CmpOp::Ne,
            K::Lt => CmpOp::Lt,
            K::Lte => CmpOp::Le,
            K::Gt => CmpOp::Gt,
            K::Gte => CmpOp::Ge,
            K::In => CmpOp::In,
            K::ScAnd => return Ok(Expr::And(self.pair(&e.left, &e.right)?)),
            K::ScOr => return Ok(Expr::Or(self.pair(&e.left, &e.right)?)),
            K::Add => return self.math(BinOp::Add, e),
            K::Sub => return self.math(BinOp::Sub, e),
            K::Mul => return self.math(BinOp::Mul, e),
            K::Div => return self.math(BinOp::Div, e),
            K::FloorDiv => return self.math(BinOp::FloorDiv, e),
            K::Rem => return self.math(BinOp::Rem, e),
            K::Pow => return self.math(BinOp::Pow, e),
            K::Concat => return self.math(BinOp::Concat, e),
        };
        Ok(Expr::Compare(Box::new(self.expr(&e.left)?), vec![(compared, self.expr(&e.right)?)]))
    }

    fn math(&mut self, op: BinOp, e: &ast::BinOp<'_>) -> Result<Expr, Error> {
        Ok(Expr::Bin(op, self.pair(&e.left, &e.right)?))
    }
}

fn compare_op(op: ast::CompareOpKind) -> CmpOp {
    match op {
        ast::CompareOpKind::Eq => CmpOp::Eq,
        ast::CompareOpKind::Ne => CmpOp::Ne,
        ast::CompareOpKind::Lt => CmpOp::Lt,
        ast::CompareOpKind::Lte => CmpOp::Le,
        ast::CompareOpKind::Gt => CmpOp::Gt,
        ast::CompareOpKind::Gte => CmpOp::Ge,
        ast::CompareOpKind::In => CmpOp::In,
        ast::CompareOpKind::NotIn => CmpOp::NotIn,
    }
}

fn literal(value: &Literal) -> Option<Expr> {
    match value.kind() {
        ValueKind::None => Some(Expr::None),
        ValueKind::Bool => Some(Expr::Bool(value.is_true())),
        ValueKind::String => value.as_str().map(|text| Expr::Str(Text::trusted(text))),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Expr::Int),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Expr::Float),
        _ => None,
    }
}

fn at(expr: &ast::Expr<'_>, message: &str) -> Error {
    Error::Syntax { line: usize::from(expr.span().start_line), message: message.to_owned() }
}
