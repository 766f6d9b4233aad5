//! Texts of the forms of a PDF file. A form is a content with a name, which pages and other forms draw any number of
//! times.

use std::collections::HashMap;
use std::rc::Rc;

use lopdf::Stream;

/// Maximum bytes of the contents of all forms, decompressed. Those beyond it are left out, as they are mostly drawings.
const LARGEST_FORMS: usize = 1 << 30;

/// Maximum bytes of the texts of all forms.
const LARGEST_TEXTS: usize = 256 << 20;

/// Texts of the forms that pages have drawn so far, each of which is read once.
pub(super) struct FormTexts {
    known: HashMap<*const Stream, Rc<str>>,
    /// Bytes left for the contents of further forms.
    pub(super) contents_left: usize,
    /// Bytes left for the texts of further forms.
    texts_left: usize,
}

impl FormTexts {
    pub(super) fn new() -> Self {
        Self { known: HashMap::new(), contents_left: LARGEST_FORMS, texts_left: LARGEST_TEXTS }
    }

    /// Returns the text of a form. `None` if it has not been read.
    pub(super) fn get(&self, form: &Stream) -> Option<Rc<str>> {
        self.known.get(&std::ptr::from_ref(form)).cloned()
    }

    /// Begins to read a form. Until it is read, it has no text, so a form that draws itself ends.
    pub(super) fn begin(&mut self, form: &Stream) {
        self.known.insert(form, Rc::from(""));
    }

    /// Keeps the text of a form.
    ///
    /// # Errors
    /// If the texts of the forms are too large.
    pub(super) fn end(&mut self, form: &Stream, text: &str) -> Result<Rc<str>, String> {
        self.texts_left = self
            .texts_left
            .checked_sub(text.len())
            .ok_or_else(|| format!("its forms hold more than {LARGEST_TEXTS} bytes of text"))?;
        let text: Rc<str> = Rc::from(text);
        self.known.insert(form, Rc::clone(&text));
        Ok(text)
    }
}
