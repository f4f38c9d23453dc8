//! A database that can be read, and nothing else, for a bounded time and amount.

use std::path::{Path, PathBuf};

use rusqlite::{
    Connection, Error, ErrorCode, OpenFlags, Row, ToSql,
    hooks::{AuthAction, AuthContext, Authorization},
    types::{ToSqlOutput, Value as SqlValue, ValueRef},
};
use serde::Serialize;
use serde_json::Value;

/// How much one answer may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) rows: usize,
    pub(crate) bytes: usize,
}

/// The result of a query.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Value>>,
    /// Whether there was more than the bounds let through.
    pub(crate) truncated: bool,
}

/// One database file. Every query opens it anew, which takes a fraction of a
/// millisecond and leaves nothing behind: no lock, no transaction, no setting.
pub(crate) struct Database {
    path: PathBuf,
}

/// Virtual machine steps between two questions whether to go on: some microseconds.
const STEPS: i32 = 1000;

impl Database {
    /// # Errors
    /// It cannot be opened or is no database.
    pub(crate) fn open(path: &Path) -> rusqlite::Result<Self> {
        let database = Self { path: path.to_owned() };
        // The file itself is read by the first statement only.
        database
            .connect(|| false)?
            .query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(database)
    }

    /// Runs one statement. `stop` is asked again and again while it runs; when it says
    /// yes, SQLite interrupts the statement wherever it is.
    ///
    /// # Errors
    /// SQLite's, among them that the statement would do more than read.
    pub(crate) fn query(
        &self,
        sql: &str,
        params: &[Value],
        bounds: Bounds,
        stop: impl FnMut() -> bool + Send + 'static,
    ) -> rusqlite::Result<Table> {
        let connection = self.connect(stop)?;
        let mut statement = connection.prepare(sql)?;
        let columns = statement.column_names().map(ToOwned::to_owned).collect();
        let width = statement.column_count();
        let mut table = Table { columns, rows: Vec::new(), truncated: false };
        let mut bytes = 0;
        let params = params.iter().map(Param);
        let mut rows = statement.query(rusqlite::params_from_iter(params))?;
        while let Some(row) = rows.next()? {
            let (cells, size) = read(row, width)?;
            bytes += size;
            if table.rows.len() == bounds.rows || bounds.bytes < bytes {
                table.truncated = true;
                break;
            }
            table.rows.push(cells);
        }
        Ok(table)
    }

    fn connect(&self, stop: impl FnMut() -> bool + Send + 'static) -> rusqlite::Result<Connection> {
        // No URI: a file name is a file name. No creation: a wrong path is an error.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.path, flags)?;
        connection.pragma_update(None, "query_only", true)?;
        connection.pragma_update(None, "trusted_schema", false)?;
        // From here on nobody but the statement's author decides what is prepared.
        connection.authorizer(Some(only_reading))?;
        connection.progress_handler(STEPS, Some(stop))?;
        Ok(connection)
    }
}

/// What a statement may be made of. Everything else is refused when it is prepared, so
/// no other file is attached, no setting changed and nothing written.
fn only_reading(context: AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => {
            Authorization::Allow
        }
        AuthAction::Function { function_name } if function_name != "load_extension" => {
            Authorization::Allow
        }
        _ => Authorization::Deny,
    }
}

/// Whether an error means that the statement was stopped.
pub(crate) fn is_interrupted(error: &Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted)
}

/// Whether an error means that the statement wanted more than to read.
pub(crate) fn is_refused(error: &Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly)
    )
}

/// The cells of a row and about how many bytes they have as JSON.
fn read(row: &Row<'_>, width: usize) -> rusqlite::Result<(Vec<Value>, usize)> {
    let mut bytes = 2;
    let cells = (0..width).map(|at| {
        let cell = match row.get_ref(at)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(n) => n.into(),
            ValueRef::Real(x) => x.into(),
            ValueRef::Text(text) => String::from_utf8_lossy(text).into(),
            // A model has no use for bytes; that there are some it should know.
            ValueRef::Blob(blob) => format!("[{} bytes]", blob.len()).into(),
        };
        bytes += 4 + cell.as_str().map_or(8, str::len);
        Ok(cell)
    });
    let cells = cells.collect::<rusqlite::Result<_>>()?;
    Ok((cells, bytes))
}

/// A JSON value as a parameter.
struct Param<'a>(&'a Value);

impl ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(match self.0 {
            Value::Null => SqlValue::Null,
            Value::Bool(b) => SqlValue::Integer((*b).into()),
            Value::Number(n) => match n.as_i64() {
                Some(n) => SqlValue::Integer(n),
                None => SqlValue::Real(n.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => SqlValue::Text(text.clone()),
            // SQLite's own functions read JSON.
            list_or_map => SqlValue::Text(list_or_map.to_string()),
        }))
    }
}
